"""How far seeds scatter, and what they can tell: which differences are seen, and what is as good as the best.

The scatter is the standard deviation of the seeds of a cell, pooled over the better half of the cells of a
grid: the others cannot be chosen, and may scatter more (above the gradient norms) or less (near chance). A
difference of two means is seen where scatter alone makes one so large, anywhere among all that are compared,
in 5 % of studies at most (Bonferroni).
"""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import t as student

from dpsweep.analysis.grids import Array, with_shared_seeds, without_diverged
from dpsweep.analysis.statistics import LEVEL
from dpsweep.study.choice import CELL, repeats

_ROUNDING = 1e-12


def pooled_variance(values: Array) -> tuple[Array, Array]:
    """Return the variance of seeds, pooled over the better half of the cells, and how many those are.

    >>> variance, cells = pooled_variance(np.array([[[0.5, 0.5], [0.6, 0.8], [0.9, 0.7]]]))
    >>> f"{variance:.3f}", int(cells)
    ('0.020', 2)

    Args:
        values: accuracies, shape (..., B, C, seeds), of two seeds or more. Those of seeds that diverged are
            replaced (`dpsweep.analysis.grids.without_diverged`).

    Returns:
        Two arrays of shape (...).
    """
    values = without_diverged(values)
    mean = values.mean(axis=-1)
    better = mean >= np.median(mean, axis=(-2, -1), keepdims=True)
    cells: Array = better.sum(axis=(-2, -1))
    return (values.var(axis=-1, ddof=1) * better).sum(axis=(-2, -1)) / cells, cells


@dataclass(frozen=True)
class Scatter:
    """Of the seeds of a cell: their standard deviation, and its degrees of freedom."""

    deviation: float
    freedom: int

    @classmethod
    def of(cls, tuned: pd.DataFrame, column: str) -> "Scatter | None":
        """Pool over all grids, each a problem at one epsilon.

        Args:
            tuned: a row per trial at its cell's best learning rate (`dpsweep.study.choice.repeats`).
            column: the accuracy.

        Returns:
            None where no grid has two cells' worth of seeds: no cell has two of them.
        """
        squares, freedom = 0.0, 0
        for _, grid in tuned.groupby(["problem", "epsilon"]):
            seeds = with_shared_seeds(grid).pivot(index=CELL, columns="seed", values=column)
            values = seeds.dropna().to_numpy(dtype=float)
            if values.shape[0] and values.shape[1] > 1:
                variance, cells = pooled_variance(values[np.newaxis])
                own = int(cells) * (values.shape[1] - 1)
                squares, freedom = squares + float(variance) * own, freedom + own
        return cls(math.sqrt(squares / freedom), freedom) if freedom else None

    def visible(self, seeds: float, comparisons: int, chance: float = LEVEL) -> float:
        """Return the smallest difference of two means that is seen among so many comparisons.

        >>> f"{Scatter(deviation=0.01, freedom=4).visible(seeds=3, comparisons=2):.4f}"
        '0.0227'

        Args:
            seeds: number of seeds of either mean.
            comparisons: number of differences that are looked at.
            chance: probability that any of them looks so large, to the side that is looked at, where
                there is none.
        """
        quantile = float(student.isf(chance / comparisons, self.freedom))
        return quantile * self.deviation * math.sqrt(2 / seeds)


def as_good_as_best(cells: pd.DataFrame, trials: pd.DataFrame) -> "pd.Series[bool]":
    """Tell the best of some cells, and all that seeds do not tell from it, from those that are worse.

    This is the subset of Gupta (1965, "On some multiple decision (selection and ranking) rules"): where seeds
    scatter alike in all cells, the one that is truly the best is in it with 95 %. So where it holds a single
    cell, that one is better than each other beyond the scatter.

    Args:
        cells: rows of `dpsweep.study.choice.summarise` or `choose`, which compare ``selection_accuracy``.
        trials: a row per trial, of these cells and perhaps others.

    Returns:
        One for each row of ``cells``. False for a cell without an accuracy (NaN), and for all where no cell
        has two seeds: then nothing is known of the scatter.
    """
    values = cells["selection_accuracy"].to_numpy(dtype=float)
    tuned = repeats(trials.merge(cells[CELL].drop_duplicates(), on=CELL))
    scatter = Scatter.of(tuned, "selection_accuracy")
    if scatter is None or np.isnan(values).all():
        return pd.Series(False, index=cells.index)
    best = int(np.nanargmax(values))
    comparisons = max(1, int(np.isfinite(values).sum()) - 1)
    seeds = [int(each) for each in cells["repeats"]]
    visible = np.array([scatter.visible(min(each, seeds[best]), comparisons) for each in seeds])
    return pd.Series(values >= values[best] - visible - _ROUNDING, index=cells.index)
