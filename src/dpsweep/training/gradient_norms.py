"""Per-example gradient norms of a finished trial, after every epoch, over the training set."""

import logging
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from dpsweep.base.errors import DpsweepError
from dpsweep.base.parquet import read_rows
from dpsweep.data.examples import usual_classes
from dpsweep.gradients import GradientEngine
from dpsweep.study import Cell, Study
from dpsweep.study.cells import number
from dpsweep.study.choice import choose
from dpsweep.study.clipping import ClippingBound
from dpsweep.study.paths import Paths
from dpsweep.training import processes
from dpsweep.training.context import Sampled, TrialContext
from dpsweep.training.physical import PhysicalBatch
from dpsweep.training.trajectory import Trajectory, measure_along

log = logging.getLogger(__name__)


class GradientNormsError(DpsweepError):
    """Gradient norms of cells that the study does not have."""


def best_cell(
    study: Study,
    paths: Paths,
    problem: str,
    epsilon: float,
    epochs: int,
    clipping_bound: ClippingBound,
) -> tuple[Cell, "pd.Series[Any]"]:
    """Choose the batch size of an (epsilon, epochs, C) as in every figure (`dpsweep.study.choice`).

    Args:
        study: the study.
        paths: its files.
        problem: the name of one of its problems.
        epsilon: the target; infinite without privacy.
        epochs: E.
        clipping_bound: C, or the name of a rule without a bound.

    Returns:
        The cell, and the row of its first seed at its best learning rate.

    Raises:
        UnreadableResultsError: a file of trials cannot be read.
        GradientNormsError: the study has no such cell.
    """
    competing = study.competing_cells(problem, epsilon, epochs, clipping_bound)
    cells = {cell.name: cell for cell in competing}
    if not cells:
        raise GradientNormsError(
            f"no cell of {problem} has epsilon {number(epsilon)}, {epochs} epochs and clipping bound "
            f"{number(clipping_bound)}"
        )
    trials = pd.concat(
        [
            read_rows(paths.cell_trials(study, cell)).to_pandas().assign(problem=problem, cell=name)
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

    Rows: one per (epoch, training example), in the order of the training set; see docs/files.md. With units
    of several rows, an example is a unit: its norm is that of its averaged gradient.
    Arguments are those of `best_cell`.

    Raises:
        CalibrationError: the noise of the trial is wrong.
        CellError: the noise is for data of another size.
        UnreadableResultsError: a file of trials cannot be read.
        GradientNormsError: the study has no such cell.
        Interrupted: a signal asked to stop (see `interruption`).
        TrajectoryError: the study describes another trial, or this device cannot repeat it.
    """
    torch.set_num_threads(study.training.threads)
    cell, row = best_cell(study, paths, problem, epsilon, epochs, clipping_bound)
    log.info("%s: best cell %s, learning rate %g", problem, cell.name, row["learning_rate"])

    def measure(trajectory: Trajectory, epoch: int) -> pd.DataFrame:
        engine, context = trajectory.engine, trajectory.context
        sampled = trajectory.sampled(epoch)
        if sampled.units is not None:
            of = "images" if context.train.units is None else "units"
            most = sampled.rows_per_unit
            log.info("norms of %s: of the mean gradient of at most %d rows of each", of, most)
        physical = context.physical_batch(
            *(study.physical_batch(problem), engine, int(row["batch_size"])),
            sampled.rows_per_unit,
        )
        norms, head_norms = training_set_norms(engine, context, physical, sampled)
        return pd.DataFrame(
            {
                "epoch": epoch,
                "label": labels_of_units(context, sampled),
                "norm": norms,
                "head_norm": head_norms,
            }
        )

    measure_along(
        *(study, paths, cell, [row]),
        paths.gradient_norms(study, problem, epsilon, epochs, clipping_bound),
        epochs=range(1, epochs + 1),
        measure=measure,
        columns=("batch_size", "learning_rate", "seed", "trial_key"),
    )


def training_set_norms(
    engine: GradientEngine,
    context: TrialContext,
    physical: PhysicalBatch,
    sampled: Sampled | None = None,
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the gradient norm of every training example, over all trainable parameters and over the head.

    Args:
        engine: computes the gradients.
        context: has the training set.
        physical: the number of rows at once.
        sampled: rows of every unit, whose mean gradient is measured; None: each row is an example.

    Returns:
        Two float arrays of shape (N,).
    """
    everything = sampled or Sampled(np.arange(len(context.train.labels)))
    if everything.rows_per_unit > 1:
        units_at_once = max(1, physical.size // everything.rows_per_unit)
        physical = PhysicalBatch(units_at_once, context.drop_step)

    def some(units: Tensor) -> Tensor:
        return torch.stack(
            engine.norms(*context.part(everything, everything.places(units.numpy())))
        )

    units = processes.rows_of_share(len(everything.starts) - 1)
    part = torch.cat(
        [torch.empty(2, 0), *(each.cpu() for each in physical.parts(units, some))], dim=1
    )
    norms = processes.joined(part, dim=1).numpy()
    return norms[0], norms[1]


def labels_of_units(context: TrialContext, sampled: Sampled) -> np.ndarray[Any, Any]:
    """Return the class that most rows of each unit have, shape (N,); the first one of equally many."""
    labels = context.train.labels.cpu().numpy()[sampled.rows]
    sizes = np.diff(sampled.starts)
    if sampled.rows_per_unit == 1:
        return labels
    return usual_classes(np.repeat(np.arange(len(sizes)), sizes), labels)
