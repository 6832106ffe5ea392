"""The rule that chooses hyperparameters, and the accuracies that are reported of a choice.

**The rule.** A cell tunes its learning rate with its first seed and repeats the best one with the
others (column ``best``). Between cells, batch size and clipping bound are chosen by the mean of
``selection_accuracy`` over all repeats of a cell at its tuned learning rate. That accuracy is on the
test set, or on held-out training examples (``training: {select_on: holdout}``).

**The report** has two numbers:

- ``centre``: the mean (or median) test accuracy over all repeats of the chosen cell. Figures and
  tables show it, because the paper reports it. It is optimistic: the repeats that made a choice also
  measure it, and the better of two noisy numbers looks better than it is.
- ``cross_fitted``: every seed but the first measures the cell that the other seeds choose; the
  mean over these splits. See `cross_fitted`. Claims (table 1, comparisons of methods) use this one.

Cross-fitting removes the optimism that comes from the randomness of training. If choices are made on the
test set, the optimism of choosing on the same test examples stays. ``select_on: holdout`` removes it too.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

CELL = ["problem", "cell"]
AXES = ["epsilon", "epochs", "batch_size", "clipping_bound"]
_CONSTANT = [
    "dataset", "backbone", "method", "optimizer", *AXES, "full_batch", "train_size", "steps",
    "clipping", "noise_multiplier", "learning_rate",
]  # fmt: skip

Array = npt.NDArray[np.float64]
Centre = Literal["mean", "median"]
Chooser = Callable[[Array], int]


def best_by_mean(accuracy: Array) -> int:
    """Return the position of the highest mean over repeats: the first one on ties.

    >>> best_by_mean(np.array([[0.5, 0.6], [0.8, 0.6], [0.9, 0.4]]))
    1

    Args:
        accuracy: selection accuracies, shape (cells, repeats). A cell with a NaN has no mean; it
            wins only if no cell has a mean.
    """
    means = accuracy.mean(axis=1)
    return 0 if np.isnan(means).all() else int(np.nanargmax(means))


def measured_by_others(selection: Array, accuracy: Array, choose: Chooser = best_by_mean) -> Array:
    """Return the accuracy of each seed but the first in the cell that the other seeds choose.

    >>> selection = np.array([[0.6, 0.5, 0.7], [0.5, 0.6, 0.6]])
    >>> measured_by_others(selection, accuracy=selection).tolist()
    [0.5, 0.7]

    Arguments as of `cross_fitted`.

    Returns:
        Shape (repeats - 1,).
    """
    measuring = range(1, accuracy.shape[1])
    chosen = [choose(np.delete(selection, seed, axis=1)) for seed in measuring]
    found: Array = accuracy[chosen, list(measuring)]
    return found


def cross_fitted(selection: Array, accuracy: Array, choose: Chooser = best_by_mean) -> float:
    """Return the accuracy of a choice, measured with seeds that took no part in it.

    >>> selection = np.array([[0.6, 0.5, 0.7], [0.5, 0.6, 0.6]])
    >>> f"{cross_fitted(selection, accuracy=selection):.3f}"
    '0.600'

    Each seed but the first is left out once: the others choose a cell, and the seed that was left
    out measures it. The result is the mean over these splits: the expected accuracy of a choice by
    one seed fewer, without the optimism of measuring with the seeds that chose.

    The first seed chooses but never measures. It tuned the learning rate of every cell, so its
    accuracy there is the highest of several noisy ones, and noisier cells gain more by that.

    Args:
        selection: selection accuracies of the cells that compete, shape (cells, repeats), the first
            seed first.
        accuracy: test accuracies, same shape.
        choose: takes selection accuracies of some seeds, shape (cells, fewer repeats), and returns
            the position of the chosen cell.

    Returns:
        NaN with a single repeat (no seed is left to measure), or if a chosen cell has no accuracy.
    """
    if accuracy.shape[1] < 2:
        return float("nan")
    return float(measured_by_others(selection, accuracy, choose).mean())


def accuracy_interval(accuracy: float, size: int) -> tuple[float, float]:
    """Return the 95 % interval (Wilson 1927) of an accuracy on so many independent test examples, or units.

    >>> "{:.3f} to {:.3f}".format(*accuracy_interval(0.75, size=100))
    '0.657 to 0.825'
    """
    from scipy.stats import binomtest  # noqa: PLC0415 (takes a second)

    found = binomtest(round(accuracy * size), size).proportion_ci(method="wilson")
    return float(found.low), float(found.high)


def repeats(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the trials at each cell's best learning rate, seeds ascending within a cell, each trial once."""
    best = trials[trials["best"].astype(bool)].drop_duplicates("trial_key")
    order = best.groupby(CELL, sort=False).ngroup()
    return (
        best.assign(_cell=order).sort_values(["_cell", "seed"], kind="stable").drop(columns="_cell")
    )


def summarise(trials: pd.DataFrame, centre: Centre = "mean") -> pd.DataFrame:
    """Return one row per cell: its axes, its best learning rate, and its accuracies over repeats.

    Adds ``selection_accuracy`` (the mean, by which cells are chosen), ``centre``, ``minimum`` and
    ``maximum`` (test accuracy), ``repeats``, ``diverged`` (how many of them diverged), and ``seed``
    and ``trial_key`` of the first seed. A repeat without an accuracy (NaN) makes mean, centre and band NaN:
    the mean of four repeats out of five is not the mean of five.
    """
    cells = repeats(trials).groupby(CELL, sort=False)
    accuracy, selection = cells["macro_accuracy"], cells["selection_accuracy"]
    over_repeats = pd.DataFrame(
        {
            "centre": accuracy.mean() if centre == "mean" else accuracy.median(),
            "minimum": accuracy.min(),
            "maximum": accuracy.max(),
        }
    )
    over_repeats[accuracy.count() < accuracy.size()] = np.nan
    over_repeats["selection_accuracy"] = selection.mean().where(
        selection.count() == selection.size()
    )
    over_repeats["repeats"] = accuracy.size()
    over_repeats["diverged"] = cells["diverged"].sum().astype(int)
    # GroupBy.first would skip a NaN.
    constant = [column for column in _CONSTANT if column in trials]
    first = cells.head(1)[[*CELL, *constant, "seed", "trial_key"]]
    return first.merge(over_repeats, left_on=CELL, right_index=True).reset_index(drop=True)


def choose(trials: pd.DataFrame, by: Sequence[str], centre: Centre = "mean") -> pd.DataFrame:
    """Choose one cell for every combination of the values of ``by``, by the rule of the module.

    All axes that are not in ``by`` are tuned jointly. A cell without an accuracy (NaN) wins only if all
    others have none. Ties go to the smallest epsilon, then epochs, B, C, in any order of rows.

    Args:
        trials: a row per trial, as `dpsweep.analysis.frames.load_trials` reads them.
        by: columns; every combination of their values gets one choice.
        centre: mean or median of the repeats, for the column ``centre``.

    Returns:
        The chosen rows of `summarise`, sorted by ``by``, with the column ``cross_fitted``.
    """
    cells = summarise(trials, centre).sort_values(AXES, kind="stable", ignore_index=True)
    keys, tuned = pd.MultiIndex.from_frame(cells[CELL]), repeats(trials)
    selection, accuracy = (
        tuned.pivot(index=CELL, columns="seed", values=column).reindex(keys).to_numpy()
        for column in ("selection_accuracy", "macro_accuracy")
    )
    winners, measured = [], []
    # The NaN as C of AUTO-S is a group too.
    for _, group in cells.groupby(list(by), dropna=False):
        # While seeds are added to a study, some cells have more of them.
        shared = group.index, slice(int(group["repeats"].min()))
        winners.append(group.index[best_by_mean(group[["selection_accuracy"]].to_numpy())])
        measured.append(cross_fitted(selection[shared], accuracy[shared]))
    chosen = cells.loc[winners].assign(cross_fitted=np.array(measured, dtype=float))
    return chosen.sort_values(list(by), kind="stable", ignore_index=True)
