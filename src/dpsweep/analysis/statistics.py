"""The paper's statistics on plain arrays, and 95% intervals of statistics of trials (the jackknife).

Trials of one problem (a dataset, a backbone, a method and an optimizer) share data and network at every
epsilon and batch size, so they are not independent evidence. So the units are problems. The jackknife (Efron
and Stein 1981) computes the statistic again without each problem. The interval is the spread of these values
times the quantile of Student's t, with (number of problems - 1) degrees of freedom. For the mean of problems
with equally many trials, it is the usual t interval of their means.

The interval is valid for similar problems. Problems that share a dataset are not independent either, so it
is not valid for other datasets.

`as_good_as_best` says which cells may be as good as the best one, as far as seeds can tell.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.ndimage import gaussian_filter1d
from scipy.stats import norm
from scipy.stats import t as student

from dpsweep.analysis.grids import Array, with_shared_seeds, without_diverged
from dpsweep.study.choice import CELL, repeats

LEVEL = 0.05
ROUNDING = 1e-12
"""Differences of accuracies below it are rounding errors."""


def first_best(values: "pd.Series[float]") -> "pd.Series[bool]":
    """Mark the largest value, the first one on ties; mark none if all are NaN.

    >>> first_best(pd.Series([0.5, 0.9, 0.9])).tolist()
    [False, True, False]
    """
    return values.astype(float).rank(method="first", ascending=False) == 1


def retained_weight(
    norms: npt.ArrayLike, labels: npt.ArrayLike, bound: float, classes: int
) -> Array:
    """Return the retained weight w_y(C) of every class (paper, eq. retained_weight).

    >>> retained_weight([1.0, 4.0, 8.0], labels=[0, 0, 1], bound=2.0, classes=2)
    array([0.75, 0.25])

    w_y(C) is the mean over the class's examples of min(1, C / norm). A zero gradient has weight 1. An
    example whose norm is not finite is left out. A class without examples is NaN.

    Args:
        norms: per-example gradient norms, shape (N,).
        labels: class of each example, shape (N,), in 0..classes-1.
        bound: the clipping bound C.
        classes: number of classes.

    Returns:
        Shape (classes,), each in [0, 1] or NaN.
    """
    values = np.asarray(norms, dtype=np.float64)
    members = np.asarray(labels, dtype=np.int64)
    finite = np.isfinite(values)
    values, members = values[finite], members[finite]
    weights = bound / np.maximum(values, bound)  # min(1, C / norm), and 1 for a zero gradient
    counts = np.bincount(members, minlength=classes)
    sums = np.bincount(members, weights=weights, minlength=classes)
    retained: Array = np.divide(sums, counts, out=np.full(classes, np.nan), where=counts > 0)
    return retained


def relative_retained_weight(weights: npt.ArrayLike, baseline: npt.ArrayLike) -> Array:
    """Divide retained weights by the largest class value at the baseline C (paper, figure 4).

    >>> relative_retained_weight([0.25, 0.5], baseline=[0.5, 1.0])
    array([0.25, 0.5 ])
    """
    reference = float(np.fmax.reduce(np.asarray(baseline, dtype=np.float64)))  # without NaN
    relative: Array = np.asarray(weights, dtype=np.float64) / reference
    return relative


def class_order(accuracy: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Order classes from easy to hard: by descending per-class accuracy.

    >>> class_order([0.5, 0.9, 0.7])
    array([1, 2, 0])

    Ties keep the order of the classes; a class without a test example (NaN) comes last.
    """
    values = np.asarray(accuracy, dtype=np.float64)
    return np.argsort(np.where(np.isnan(values), np.inf, -values), kind="stable").astype(np.int64)


def running_mean(values: npt.ArrayLike, window: int) -> Array:
    """Return the centred mean over ``window`` neighbours (odd), over fewer at the ends, ignoring NaN.

    >>> running_mean([0.0, 3.0, 6.0], window=3)
    array([1.5, 3. , 4.5])
    """
    series = pd.Series(np.asarray(values, dtype=np.float64))
    return series.rolling(window, center=True, min_periods=1).mean().to_numpy()


def log_density(norms: npt.ArrayLike, grid: npt.ArrayLike) -> Array:
    """Return the density of log10(norm) on a uniform grid of log10 values, with integral 1 over the line.

    All positive, finite norms are counted in bins of the grid's spacing. The counts are smoothed with a
    Gaussian. Its bandwidth is Silverman's rule (0.9 min(std, IQR/1.34) n^(-1/5)), at least one bin.
    NaN without a usable norm.
    """
    centres = np.asarray(grid, dtype=np.float64)
    values = np.asarray(norms, dtype=np.float64)
    logs = np.log10(values[np.isfinite(values) & (values > 0)])
    if not logs.size:
        return np.full(centres.size, np.nan)
    step = float(centres[1] - centres[0])
    edges = np.append(centres - step / 2, centres[-1] + step / 2)
    counts = np.histogram(logs, edges)[0] / (logs.size * step)
    lower, upper = np.quantile(logs, [0.25, 0.75])
    spreads = [spread for spread in (logs.std(), (upper - lower) / 1.34) if spread > 0]
    silverman = 0.9 * min(spreads) * logs.size**-0.2 if spreads else 0.0
    smooth: Array = gaussian_filter1d(counts, max(silverman / step, 1.0), mode="constant")
    return smooth


def share_error(share: npt.ArrayLike, count: float) -> Array:
    """Return the standard error of a share of counted examples, also of a share of 0 or 1.

    It is the distance from the share to the farther end of its 95 % interval (Wilson 1927), over the normal
    quantile. The binomial sqrt(p (1 - p) / n) is 0 if all examples are right, or all wrong.

    >>> [round(float(share_error(share, 100)), 4) for share in (0.0, 0.5, 1.0)]
    [0.0189, 0.0491, 0.0189]

    Args:
        share: in [0, 1], any shape.
        count: number of examples, at least 0; infinite if their noise is ignored.
    """
    values, quantile = np.asarray(share, dtype=np.float64), norm.isf(LEVEL / 2)
    # The interval's centre is a mean of the share and 1/2, which has this weight: 1 without examples.
    weight = quantile**2 / (count + quantile**2)
    half = np.sqrt(weight * (1 - weight) * values * (1 - values) + weight**2 / 4)
    farther: Array = weight * np.abs(0.5 - values) + half
    return farther / quantile


class Estimate(NamedTuple):
    """A statistic with a 95% interval; all values are NaN if the statistic is not defined."""

    value: float
    lower: float
    upper: float
    """NaN, like `lower`, for one problem, if all problems agree exactly (their spread is then unknown, not
    0), or if the statistic is not defined without one of them."""


def jackknife(rows: pd.DataFrame, statistic: Callable[[pd.DataFrame], float]) -> Estimate:
    """Return a statistic and its 95% interval over problems.

    >>> rows = pd.DataFrame({"problem": ["a", "b", "c"], "lost": [0.01, 0.02, 0.06]})
    >>> estimate = jackknife(rows, lambda some: some["lost"].mean())
    >>> [round(number, 3) for number in estimate]
    [0.03, -0.036, 0.096]

    Args:
        rows: any number of rows for each ``problem``.
        statistic: function of such rows; NaN if it is not defined.
    """
    value = float(statistic(rows)) if len(rows) else np.nan
    units = rows["problem"].unique()
    if len(units) < 2:
        return Estimate(value, np.nan, np.nan)
    without = np.array([statistic(rows[rows["problem"] != each]) for each in units])
    count = len(units)
    error = np.sqrt((count - 1) / count * ((without - without.mean()) ** 2).sum())
    if error < ROUNDING:
        return Estimate(value, np.nan, np.nan)
    reach = float(student.ppf(1 - LEVEL / 2, count - 1) * error)
    return Estimate(value, value - reach, value + reach)


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
