"""From a cell of a study to the specification of its trials."""

from typing import Any

import torch

from dpsweep.data.prepared import PreparedDataset
from dpsweep.errors import DpsweepError
from dpsweep.files import read_json
from dpsweep.models.backbone import PreparedBackbone
from dpsweep.privacy import Calibration
from dpsweep.study import Cell, Study
from dpsweep.study.cells import ClippingBound
from dpsweep.study.paths import Paths
from dpsweep.training.precision import resolve_precision
from dpsweep.training.trial import TrialSpec, Workbench


class CellError(DpsweepError):
    """A cell that cannot be trained; the message says what to do."""


def read_calibration(study: Study, paths: Paths, cell: Cell) -> Calibration:
    """Read the noise of a cell, and check that it was calibrated for this study.

    Raises:
        CellError: the calibration belongs to another setting.
    """
    dataset = study.sweeps[cell.sweep].dataset
    path = paths.noise(dataset, cell.epsilon, cell.epochs, cell.batch_size)
    noise = Calibration.from_dict(read_json(path)["calibration"])
    found = (noise.epsilon, noise.delta, noise.train_size, noise.batch_size)
    size, batch_size = study.train_size(dataset), study.batch_size(cell)
    wanted = (cell.epsilon, study.privacy.delta, size, batch_size)
    if found != wanted:
        raise CellError(
            f"{path}: calibrated for (epsilon, delta, N, B) = {found}, needed {wanted}; "
            f"delete it and run again"
        )
    return noise


def check_size(noise: Calibration, bench: Workbench) -> None:
    """Check that noise was calibrated for as many examples as are trained on.

    Raises:
        CellError: the prepared data is of another size.
    """
    found = len(bench.train.labels)
    if found != noise.train_size:
        raise CellError(
            f"the prepared data has {found} training examples, the noise was calibrated for "
            f"{noise.train_size}; the dataset's train_size has changed: prepare it again"
        )


def specify(
    study: Study,
    cell: Cell,
    noise: Calibration,
    data: PreparedDataset,
    backbone: PreparedBackbone,
    device: torch.device,
    learning_rate: float,
    seed: int,
) -> TrialSpec:
    """The specification of one trial of a cell on a device.

    N, B, T and sigma are those of the calibration: what is trained is what was accounted for.
    """
    sweep, training = study.sweeps[cell.sweep], study.training
    return TrialSpec(
        data=data.metadata.checksum,
        backbone=backbone.metadata.checksum,
        method=study.methods[sweep.method].model_dump(mode="json", exclude={"title"}),
        optimizer=sweep.optimizer,
        epsilon=noise.epsilon,
        delta=noise.delta,
        noise_multiplier=noise.noise_multiplier,
        train_size=noise.train_size,
        holdout=study.holdout_size(sweep.dataset),
        batch_size=noise.batch_size,
        epochs=cell.epochs,
        steps=noise.steps,
        clipping=_clipping(cell.clipping_bound, training.automatic_clipping_gamma),
        learning_rate=learning_rate,
        seed=seed,
        engine=training.engine,
        physical_batch=sweep.physical_batch or training.physical_batch,
        threads=training.threads,
        compile=training.compile,
        precision=resolve_precision(training.precision, training.engine, device),
    )


def _clipping(bound: ClippingBound, gamma: float) -> dict[str, Any]:
    match bound:
        case "automatic":
            return {"kind": "automatic", "gamma": gamma}
        case "none":
            return {"kind": "none"}
    return {"kind": "flat", "bound": float(bound)}
