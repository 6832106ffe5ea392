"""Overlaps of a trial's per-example gradients, at the start and after every epoch.

The paper's theory of clipping needs them (`dpsweep.theory`). They come from raw gradients of training
data, so they are **not private** for any epsilon of the trial.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from dpsweep.base.parquet import read_rows
from dpsweep.study import Cell, Study
from dpsweep.study.paths import Paths
from dpsweep.theory.optimal_clipping import ClippedSums, Rows
from dpsweep.training.randomness import numpy_stream
from dpsweep.training.trajectory import Trajectory, measure_along

NOT_PRIVATE = "not private: computed from raw gradients of the training data"
"""A note in the metadata of the files, and in the column ``privacy`` of figures' numbers."""

# Gradients of a draw up to this size are kept for their second use; larger ones are computed twice.
_KEPT_BYTES = 2**28
# At most so many numbers, and so many gradients, are computed at once: with larger blocks, the
# activations of 224 x 224 images alone take gigabytes.
_AT_ONCE = 2**23
_BLOCK = 16


def best_trials(study: Study, paths: Paths, cell: Cell, seeds: int) -> list["pd.Series[Any]"]:
    """Return the rows of a cell's first seeds at its best learning rate, from its file of trials.

    Args:
        study: the study.
        paths: its files.
        cell: a cell of the study.
        seeds: their largest number.

    Raises:
        UnreadableResultsError: the file cannot be read.
    """
    trials = read_rows(paths.cell_trials(study, cell)).to_pandas()
    first = trials[trials["best"]].sort_values("seed").head(seeds)
    return [row for _, row in first.iterrows()]


def measure_overlap(study: Study, paths: Paths, cell: Cell) -> None:
    """Write the overlaps of gradients, in eval mode, for batches of a cell's best trials.

    With units of several rows, a gradient is the mean over the rows of a unit.

    Rows: one per (seed, epoch, draw, example of the draw with a gradient that is not zero), ascending in
    the norm; see docs/files.md. Batches have the trial's expected size, or ``theory.largest_batch`` if
    that is smaller, and are drawn without replacement. They are the same after every epoch, and for
    all trials with the same number of examples.

    Raises:
        CalibrationError: the noise of the trial is wrong.
        CellError: the noise is for data of another size.
        UnreadableResultsError: the file of trials cannot be read.
        Interrupted: a signal asked to stop (see `interruption`).
        TrajectoryError: the study describes another trial, or this device cannot repeat it.
    """
    torch.set_num_threads(study.training.threads)
    size = min(study.batch_size(cell), study.theory.largest_batch)

    def measure(trajectory: Trajectory, epoch: int) -> pd.DataFrame:
        examples = trajectory.context.train.protected
        batches = draw_batches(examples, size, study.theory.draws)
        draws = [_overlap(trajectory, each).assign(draw=draw) for draw, each in batches.items()]
        return pd.concat(draws).assign(epoch=epoch)

    measure_along(
        *(study, paths, cell, best_trials(study, paths, cell, study.theory.seeds)),
        paths.theory(study, cell),
        epochs=range(cell.epochs + 1),
        measure=measure,
        columns=(
            *("batch_size", "noise_multiplier", "trainable_parameters"),
            *("learning_rate", "seed", "trial_key"),
        ),
        settings=f"_{study.theory.draws}x{size}",
        metadata={b"privacy": NOT_PRIVATE.encode()},
    )


def draw_batches(examples: int, size: int, draws: int) -> dict[int, npt.NDArray[np.int64]]:
    """Draw batches without replacement, by number from 1; a batch of all examples is drawn only once."""
    if size >= examples:
        return {1: np.arange(examples)}
    return {
        draw: np.sort(numpy_stream("theory", draw).choice(examples, size, replace=False))
        for draw in range(1, draws + 1)
    }


def _overlap(trajectory: Trajectory, batch: npt.NDArray[np.int64]) -> pd.DataFrame:
    """Return the overlaps of a batch's gradients; those that are not finite count as zero, as in training."""
    dimension = sum(each.numel() for each in trajectory.engine.parameters.values())
    at_once = min(_BLOCK, max(1, _AT_ONCE // dimension))
    rows, nonfinite = _rows(trajectory, batch, dimension, at_once)
    sums = ClippedSums.from_rows(rows, len(batch), at_once)
    return pd.DataFrame(
        {
            "norm": sums.norms,
            "dot_smaller": sums.smaller,
            "dot_larger": sums.larger,
            "dot_larger_units": sums.larger_units,
        }
    ).assign(examples=len(batch), nonfinite_examples=len(nonfinite))


def _rows(
    trajectory: Trajectory, batch: npt.NDArray[np.int64], dimension: int, at_once: int
) -> tuple[Rows, set[int]]:
    """Return a function for the gradients of a batch: kept if they are small, else computed at every call.

    Returns:
        The function, and a set to which it adds the examples with a gradient that is not finite.
    """
    context, nonfinite, sampled = trajectory.context, set[int](), trajectory.sampled(0)

    def compute(chosen: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        examples = batch[chosen]
        inputs, labels, _, *units = context.part(sampled, sampled.places(examples))
        gradients, wrong = trajectory.engine.gradients(inputs, labels, *units)
        nonfinite.update(examples[wrong.cpu().numpy()].tolist())
        found: npt.NDArray[np.float32] = gradients.cpu().numpy()
        return found

    if 4 * len(batch) * dimension > _KEPT_BYTES:
        return compute, nonfinite
    kept = np.zeros((len(batch), dimension), dtype=np.float32)
    for first in range(0, len(batch), at_once):
        block = np.arange(first, min(first + at_once, len(batch)))
        kept[block] = compute(block)
    return lambda chosen: kept[chosen], nonfinite
