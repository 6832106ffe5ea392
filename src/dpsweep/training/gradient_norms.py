"""Per-example gradient norms of a finished trial, after every epoch, over the training set.

The store has the trial's parameters, unless they are large (`KEPT_PARAMETER_BYTES`): then the
trial is trained a second time. That is one of the hundred trials whose cells compete, and
cheaper than a disk for the parameters of all of them.
"""

import logging
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from dpsweep.choice import choose
from dpsweep.clipping import ClippingBound
from dpsweep.errors import DpsweepError
from dpsweep.files import atomic_path
from dpsweep.models.backbone import PreparedBackbone
from dpsweep.study import Cell, Study
from dpsweep.study.cells import number
from dpsweep.study.inputs import norms_cells
from dpsweep.study.paths import Paths
from dpsweep.training.cell import trial_specs
from dpsweep.training.context import TrialContext, load_trainable
from dpsweep.training.features import open_inputs
from dpsweep.training.gradients import GradientEngine
from dpsweep.training.interruption import interruption
from dpsweep.training.specification import TrialSpec, cell_noise, check_size
from dpsweep.training.store import Arrays, TrialStore
from dpsweep.training.trial import train_trial

log = logging.getLogger(__name__)


class GradientNormsError(DpsweepError):
    """A trial whose gradient norms cannot be measured; the message says what to do."""


def best_cell(
    study: Study,
    paths: Paths,
    problem: str,
    epsilon: float,
    epochs: int,
    clipping_bound: ClippingBound,
) -> tuple[Cell, "pd.Series[Any]"]:
    """Choose the batch size of an (epsilon, epochs, C) as every figure does (`dpsweep.choice`).

    Returns:
        The cell, and the row of its first seed at its best learning rate.

    Raises:
        GradientNormsError: the study has no such cell.
    """
    competing = norms_cells(study, problem, epsilon, epochs, clipping_bound)
    cells = {cell.name: cell for cell in competing}
    if not cells:
        raise GradientNormsError(
            f"no cell of {problem} has epsilon {number(epsilon)}, {epochs} epochs and clipping bound "
            f"{number(clipping_bound)}"
        )
    trials = pd.concat(
        [
            pd.read_parquet(paths.cell(cell) / "trials.parquet").assign(problem=problem, cell=name)
            for name, cell in cells.items()
        ],
        ignore_index=True,
    )
    chosen = choose(trials, by=["epochs"]).iloc[0]
    row = trials[trials["trial_key"] == chosen["trial_key"]].iloc[0]
    return cells[chosen["cell"]], row


def measure_gradient_norms(
    study: Study,
    paths: Paths,
    problem: str,
    epsilon: float,
    epochs: int,
    clipping_bound: ClippingBound,
) -> None:
    """Write the gradient norms of the best (B, learning rate), first seed, in eval mode.

    Rows: one per (epoch, training example), in the order of the training set; see docs/design.md.
    A job that is killed keeps the epochs that are done, and a trial that was trained again.

    Raises:
        CalibrationError: the noise of the trial cannot be believed.
        CellError: the noise is for data of another size.
        GradientNormsError: the study has no such cell, or describes another trial.
        Interrupted: a signal asked to stop (see `interruption`).
    """
    torch.set_num_threads(study.training.threads)
    cell, row = best_cell(study, paths, problem, epsilon, epochs, clipping_bound)
    log.info("%s: best cell %s, learning rate %g", problem, cell.name, row["learning_rate"])
    parts = study.problems[problem]
    data = open_inputs(study, paths, problem)
    backbone = PreparedBackbone.open(paths.backbone(parts.backbone))
    context = TrialContext(data, backbone, study.methods[parts.method], study.holdout_share)
    noise = cell_noise(study, paths, cell)
    check_size(noise, context, data)
    specs = trial_specs(study, cell, noise, data, backbone, context.device)
    spec = _checked(specs.get((row["learning_rate"], row["seed"])), row, paths.cell(cell))
    output = paths.gradient_norms(problem, epsilon, epochs, clipping_bound)
    # No declared output, so that it survives a killed job.
    finished = output.with_suffix(".unfinished") / row["trial_key"]
    store = TrialStore(paths.trials)
    # Kept until the norms are written: on a GPU, trained a third time they would differ a little.
    retrained = TrialStore(finished)
    saved = False
    stored = store.load_parameters(row["trial_key"])
    if stored is None:
        stored = retrained.load_parameters(row["trial_key"])
    if stored is None:
        stored = _train_again(study, spec, row, context, store)
        retrained.save_parameters(spec.key, stored)
        saved = True
    model = context.model(int(row["seed"]))
    # The norms that clipping saw: in the precision of the trial, wherever this job runs.
    engine = context.engine(study.engine(problem), model, row["precision"])
    physical_batch = study.physical_batch(problem)
    files = [finished / f"epoch{epoch}.parquet" for epoch in range(1, epochs + 1)]
    for epoch, file in enumerate(files, start=1):
        if file.exists():
            continue
        if stop := interruption(saved=saved):
            raise stop
        started = time.monotonic()
        prefix = f"epoch{epoch}/"
        load_trainable(
            model,
            {
                name.removeprefix(prefix): torch.from_numpy(value)
                for name, value in stored.items()
                if name.startswith(prefix)
            },
        )
        norms, head_norms = training_set_norms(engine, context, physical_batch)
        measured = pd.DataFrame(
            {
                "epoch": epoch,
                "label": context.train.labels.cpu().numpy(),
                "norm": norms,
                "head_norm": head_norms,
            }
        )
        with atomic_path(file) as partial:
            measured.to_parquet(partial, index=False)
        saved = True
        log.info("epoch %d of %d (%.1f s)", epoch, epochs, time.monotonic() - started)
    frame = pd.concat(map(pd.read_parquet, files), ignore_index=True).assign(
        batch_size=int(row["batch_size"]),
        learning_rate=float(row["learning_rate"]),
        seed=int(row["seed"]),
        trial_key=row["trial_key"],
    )
    with atomic_path(output) as partial:
        frame.to_parquet(partial, index=False)
    shutil.rmtree(finished.parent)
    store.checkpoint_path(row["trial_key"]).unlink(missing_ok=True)


def _checked(spec: TrialSpec | None, row: "pd.Series[Any]", cell: Path) -> TrialSpec:
    """The specification of the trial of a row, if the study describes this very trial."""
    # The cell may have been trained on another kind of device.
    device = row["device"].partition(":")[0]
    spec = spec and replace(spec, precision=row["precision"], device=device)
    if spec is None or spec.key != row["trial_key"]:
        file = cell / "trials.parquet"
        raise GradientNormsError(
            f"{file}: found trial {row['trial_key']} (learning rate {row['learning_rate']:g}, seed "
            f"{row['seed']}), expected {spec.key if spec else 'another learning rate'}: it was "
            "trained for another study than this one",
            (file,),
        )
    return spec


def _train_again(
    study: Study, spec: TrialSpec, row: "pd.Series[Any]", context: TrialContext, store: TrialStore
) -> Arrays:
    """The parameters after every epoch of a trial that is done but has not kept them."""
    if spec.device != context.device.type:
        raise GradientNormsError(
            f"trial {spec.key} was trained on {spec.device}, and this job has only "
            f"{context.device.type}, which draws other noise; its parameters are not stored, so measure "
            f"its gradient norms on a machine with {spec.device}"
        )
    log.info("training the trial again: its parameters are not stored")
    seconds = 60 * study.training.checkpoint_minutes
    trial, parameters = train_trial(spec, context, store.checkpoint_path(spec.key), seconds)
    found, expected = trial.record["macro_accuracy"], row["macro_accuracy"]
    # On the CPU they are equal; other devices round differently from run to run.
    if found != expected:
        log.warning("macro accuracy %.4f, the first time it was %.4f", found, expected)
    return parameters


def training_set_norms(
    engine: GradientEngine, context: TrialContext, physical_batch: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Gradient norm of every training example, for all trainable parameters and for the head.

    Returns:
        Two float arrays of shape (N,).
    """
    parts = []
    for rows in torch.split(torch.arange(len(context.train.labels)), physical_batch):
        inputs, chosen = context.batch(context.train, rows), rows.to(context.device)
        keep = torch.ones_like(chosen, dtype=torch.bool)
        parts.append(torch.stack(engine.norms(inputs, context.train.labels[chosen], keep)))
    norms = torch.cat(parts, dim=1).cpu().numpy()
    return norms[0], norms[1]
