"""The scatter of seeds, the smallest visible difference, and the cells that are as good as the best.

The scatter is the standard deviation of the seeds of a cell, pooled over the better half of the cells of a
grid. The other cells cannot be chosen, and may scatter more (above the gradient norms) or less (near chance).
A difference of two means is visible if, by scatter alone, at most 5 % of studies have such a large one
anywhere among their comparisons (Bonferroni).
"""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import t as student

from dpsweep.analysis.grids import Array, with_shared_seeds, without_diverged
from dpsweep.analysis.statistics import LEVEL, ROUNDING
from dpsweep.study.choice import CELL, repeats


def pooled_variance(values: Array) -> tuple[Array, Array]:
    """Return the variance of seeds, pooled over the better half of the cells, and their number.

    >>> variance, cells = pooled_variance(np.array([[[0.5, 0.5], [0.6, 0.8], [0.9, 0.7]]]))
    >>> f"{variance:.3f}", int(cells)
    ('0.020', 2)

    Args:
        values: accuracies, shape (..., B, C, seeds), of two or more seeds. Accuracies of diverged seeds
            are replaced (`dpsweep.analysis.grids.without_diverged`).

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
    """The standard deviation of the seeds of a cell, and its degrees of freedom."""

    deviation: float
    freedom: int

    @classmethod
    def of(cls, tuned: pd.DataFrame, column: str) -> "Scatter | None":
        """Pool the scatter over all grids; a grid is a problem at one epsilon.

        Args:
            tuned: a row per trial at its cell's best learning rate (`dpsweep.study.choice.repeats`).
            column: the accuracy.

        Returns:
            None if no cell has two seeds, or if all seeds agree exactly.
        """
        squares, freedom = 0.0, 0
        for _, grid in tuned.groupby(["problem", "epsilon"]):
            seeds = with_shared_seeds(grid).pivot(index=CELL, columns="seed", values=column)
            values = seeds.dropna().to_numpy(dtype=float)
            if values.shape[0] and values.shape[1] > 1:
                variance, cells = pooled_variance(values[np.newaxis])
                own = int(cells) * (values.shape[1] - 1)
                squares, freedom = squares + float(variance) * own, freedom + own
        deviation = math.sqrt(squares / freedom) if freedom else 0.0
        return cls(deviation, freedom) if deviation > ROUNDING else None

    def visible(self, seeds: float, comparisons: int, chance: float = LEVEL) -> float:
        """Return the smallest visible difference of two means among several comparisons.

        >>> f"{Scatter(deviation=0.01, freedom=4).visible(seeds=3, comparisons=2):.4f}"
        '0.0227'

        Args:
            seeds: number of seeds of each mean.
            comparisons: number of compared differences.
            chance: probability that scatter alone makes any of them so large (one-sided).
        """
        quantile = float(student.isf(chance / comparisons, self.freedom))
        return quantile * self.deviation * math.sqrt(2 / seeds)


def as_good_as_best(cells: pd.DataFrame, trials: pd.DataFrame) -> "pd.Series[bool]":
    """Mark the best of some cells, and all cells that are not visibly worse.

    This is the subset of Gupta (1965, "On some multiple decision (selection and ranking) rules"). If seeds
    scatter equally in all cells, it contains the truly best cell with probability 95 %. So if it contains a
    single cell, this cell is better than all others beyond the scatter.

    Args:
        cells: rows of `dpsweep.study.choice.summarise` or `choose`, compared by ``selection_accuracy``.
        trials: a row per trial, of these cells and perhaps others.

    Returns:
        One value for each row of ``cells``. False for a cell without an accuracy (NaN), and for all cells if
        the scatter is unknown: none has two seeds, or all seeds agree exactly.
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
    return pd.Series(values >= values[best] - visible - ROUNDING, index=cells.index)
