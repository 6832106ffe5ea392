"""The specification of a trial: everything that determines its result."""

from dataclasses import asdict, dataclass
from typing import Any

import torch

from dpsweep import TRAINER_VERSION
from dpsweep.base.errors import DpsweepError
from dpsweep.base.files import fingerprint
from dpsweep.data.prepared import PreparedDataset
from dpsweep.gradients.precision import Precision, resolve_precision
from dpsweep.models.backbone import PreparedBackbone
from dpsweep.privacy import Calibration, Sampling
from dpsweep.privacy.record import read_calibration
from dpsweep.study import Cell, Study
from dpsweep.study.clipping import Clipping
from dpsweep.study.paths import Paths
from dpsweep.training.context import TrialContext
from dpsweep.training.physical import PhysicalBatchSize


@dataclass(frozen=True)
class TrialSpec:
    """Everything that determines a trial, as plain values."""

    data: str
    """checksum of the prepared dataset"""
    classes: str
    """fingerprint of the list of its classes"""
    backbone: str
    """checksum of the prepared backbone"""
    method: dict[str, Any]
    """which parameters train: the identity of a method of the study"""
    optimizer: str | dict[str, Any]
    """the update after the noise: the identity of an optimizer of the study"""
    epsilon: float
    delta: float
    noise_multiplier: float
    train_size: int
    batch_size: int
    """expected batch size B"""
    epochs: int
    steps: int
    clipping: Clipping
    """the rule that bounds the influence of one example"""
    learning_rate: float
    seed: int
    engine: str
    physical_batch: PhysicalBatchSize
    threads: int
    device: str = "cpu"
    """kind of device; each kind draws other noise and rounds differently"""
    precision: Precision = "float32"
    """of the forward and backward pass"""
    holdout: int = 0
    """number of examples for selection; train_size does not count them"""
    compile: bool = False
    rows_per_unit: int = 0
    """the most rows of a unit in a step; train_size counts units. 0: each row is a unit"""

    @property
    def sampling(self) -> Sampling:
        """The sampling of the training set."""
        return Sampling(self.train_size, self.batch_size, self.steps)

    @property
    def key(self) -> str:
        """The trial's name in the store: a hash of the specification and the trainer's version."""
        fields = asdict(self)
        if not self.rows_per_unit:  # the keys of trials from before there were units
            del fields["rows_per_unit"]
        return fingerprint({"trainer": TRAINER_VERSION, **fields})


class CellError(DpsweepError):
    """A cell that cannot be trained; the message names the remedy."""


def cell_noise(study: Study, paths: Paths, cell: Cell) -> Calibration:
    """Read the noise of a cell, and compare it with the study's (epsilon, delta, N, B, T).

    Raises:
        CalibrationError: the file is wrong, or for another setting.
    """
    dataset = study.problems[cell.problem].dataset
    return read_calibration(
        paths.noise(study, dataset, cell.epsilon, cell.epochs, cell.batch_size),
        epsilon=cell.epsilon,
        delta=study.privacy.delta,
        sampling=study.sampling(dataset, cell.epochs, cell.batch_size),
    )


def check_size(noise: Calibration, context: TrialContext, data: PreparedDataset) -> None:
    """Check that noise was calibrated for the number of training examples.

    Raises:
        CellError: the prepared data has another size.
    """
    found = context.train.protected
    if found != noise.train_size:
        what = "examples" if context.train.units is None else "units"
        raise CellError(
            f"{data.folder}: found {found} {what} to train on, expected {noise.train_size}, which "
            "the noise is calibrated for",
            (data.folder / "metadata.json",),
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
    """Specify one trial of a cell on a device.

    N, B, T and sigma come from the calibration, so training matches the accounting.

    Args:
        study: the study.
        cell: of one of its problems; it need not belong to a sweep.
        noise: of the cell.
        data: the prepared dataset, or its features.
        backbone: the prepared backbone.
        device: where the trial is trained.
        learning_rate: of the trial.
        seed: of the trial.
    """
    problem, training = study.problems[cell.problem], study.training
    engine = study.engine(cell.problem)
    # A linear layer gains no speed from bfloat16.
    precision = "float32" if study.trains_on_vectors(cell.problem) else training.precision
    return TrialSpec(
        data=data.metadata.checksum,
        classes=fingerprint(data.metadata.classes),
        backbone=backbone.metadata.checksum,
        method=study.methods[problem.method].identity(),
        optimizer=study.optimizer(problem.optimizer).identity(),
        epsilon=noise.epsilon,
        delta=noise.delta,
        noise_multiplier=noise.noise_multiplier,
        train_size=noise.train_size,
        holdout=study.holdout_size(problem.dataset),
        batch_size=noise.batch_size,
        epochs=cell.epochs,
        steps=noise.steps,
        clipping=study.clipping(cell),
        learning_rate=learning_rate,
        seed=seed,
        engine=engine,
        physical_batch=study.physical_batch(cell.problem),
        threads=training.threads,
        device=device.type,
        compile=training.compile,
        rows_per_unit=study.datasets[problem.dataset].rows_per_unit
        if data.train_units is not None
        else 0,
        precision=resolve_precision(precision, engine, device),
    )
