"""Grids of accuracies over batch size and clipping bound, and the paper's statistics of them and of trials.

Trials of one problem (a dataset, a backbone, a method and an optimizer) share data and network at every
epsilon and batch size, so they are not independent evidence. So the units of `jackknife` are problems. The
jackknife (Efron and Stein 1981) computes a statistic again without each problem. The interval is the spread
of these values times the quantile of Student's t, with (number of problems - 1) degrees of freedom. For the
mean of problems with equally many trials, it is the usual t interval of their means.

The interval is valid for similar problems. Problems that share a dataset are not independent either, so it
is not valid for other datasets.

`as_good_as_best` says which cells may be as good as the best one, as far as seeds can tell.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.ndimage import gaussian_filter1d
from scipy.stats import norm
from scipy.stats import t as student

from dpsweep.study.choice import CELL, repeats

Array = npt.NDArray[np.float64]
Axis = Literal["batch_size", "clipping_bound"]
Condition = Literal["dataset", "backbone", "method", "optimizer", "epsilon", "epochs"]

CONDITIONS: tuple[Condition, ...] = (
    "dataset", "backbone", "method", "optimizer", "epsilon", "epochs",
)  # fmt: skip
"""The conditions in which two grids may differ."""
_PLACE: dict[Axis, int] = {"batch_size": -3, "clipping_bound": -2}
"""The position of each setting's axis in arrays of shape (..., B, C, seeds)."""


@dataclass(frozen=True)
class AccuracyGrid:
    """Accuracies of one (problem, epsilon, epochs) over (B, C), at each cell's best learning rate.

    A study has no leading axes (...). In `dpsweep.analysis.power` they are the simulated studies.

    Attributes:
        dataset, backbone, method, optimizer: the problem, by the names of the study.
        epsilon: privacy budget.
        epochs: passes over the data.
        batch_size: the values of B, ascending; the full batch is a number here.
        clipping_bound: the values of C, ascending.
        selection: accuracy in [0, 1] that hyperparameters are chosen by, shape (..., B, C, seeds), the
            first seed first. NaN if a cell or a seed is absent.
        accuracy: on the test set, same shape.
        tuning: selection accuracy of the first seed at every learning rate of the grid, ascending, shape
            (..., B, C, learning rates). NaN for a rate that was not tried.
        test_size: number of test examples for ``accuracy``.
    """

    dataset: str
    backbone: str
    method: str
    optimizer: str
    epsilon: float
    epochs: int
    batch_size: tuple[int, ...]
    clipping_bound: tuple[float, ...]
    selection: Array
    accuracy: Array
    tuning: Array
    test_size: float = math.inf

    @property
    def seeds(self) -> int:
        """Number of seeds of a cell."""
        return int(self.accuracy.shape[-1])

    @property
    def constant(self) -> bool:
        """Whether all trials of the chosen learning rates have one accuracy, as if all diverged or are right.

        Such a grid cannot tell which of its settings is better, however many test examples there are.
        """
        return all(np.nanmin(each) == np.nanmax(each) for each in (self.selection, self.accuracy))

    @property
    def reached(self) -> float:
        """Mean test accuracy over all seeds of the chosen cell (`dpsweep.study.choice`)."""
        rows, columns = self.choice()
        return float(np.mean(at(self.accuracy.mean(axis=-1), rows, columns)))

    def choice(self) -> tuple[npt.NDArray[np.intp], ...]:
        """Return the positions of the chosen B and C, each of shape (...) (`dpsweep.study.choice`)."""
        return best(self.selection.mean(axis=-1))

    def among(self, axis: Axis, values: Iterable[float]) -> "AccuracyGrid":
        """Return this grid restricted to some values of one axis."""
        wanted = set(values)
        kept = [place for place, value in enumerate(getattr(self, axis)) if value in wanted]
        changes: dict[str, Any] = {axis: tuple(getattr(self, axis)[place] for place in kept)}
        for name in ("selection", "accuracy", "tuning"):
            changes[name] = np.take(getattr(self, name), kept, axis=_PLACE[axis])
        return replace(self, **changes)

    def complete(self, axis: Axis) -> set[float]:
        """Return the values of one axis that have all cells and seeds."""
        columns = np.moveaxis(self.selection, _PLACE[axis], 0)
        return {
            value
            for value, column in zip(getattr(self, axis), columns, strict=True)
            if not np.isnan(column).any()
        }


def mean_without(values: Array, seed: int) -> Array:
    """Return the mean over the last axis (seeds), without the seed at one position."""
    mean: Array = np.delete(values, seed, axis=-1).mean(axis=-1)
    return mean


def without_diverged(accuracy: Array) -> Array:
    """Replace seeds that are far below the best seed of their cell by the mean of the cell's other seeds.

    Far means more than 5 points, and more than ten times the median scatter of the grid's cells.

    >>> cells = np.array([[[0.80, 0.81, 0.02], [0.79, 0.78, 0.79], [0.77, 0.78, 0.78]]])
    >>> without_diverged(cells).round(3)[0, 0].tolist()
    [0.8, 0.81, 0.805]

    Args:
        accuracy: in [0, 1], shape (..., B, C, seeds).
    """
    if accuracy.shape[-1] == 1:
        return accuracy
    scatter = accuracy.std(axis=-1, ddof=1)
    middle = np.median if np.isfinite(scatter).all() else np.nanmedian
    far = np.maximum(0.05, 10 * middle(scatter, axis=(-2, -1)))[..., None, None, None]
    low = accuracy < accuracy.max(axis=-1, keepdims=True) - far
    if not low.any():
        return accuracy
    others = np.where(low, 0, accuracy).sum(axis=-1, keepdims=True)
    found: Array = np.where(low, others / (~low).sum(axis=-1, keepdims=True), accuracy)
    return found


def best(accuracy: Array) -> tuple[npt.NDArray[np.intp], ...]:
    """Return the position (B, C) of the highest accuracy: the smallest B, then C, on ties.

    >>> row, column = best(np.array([[0.5, 0.9], [0.9, 0.8]]))
    >>> int(row), int(column)
    (0, 1)

    Args:
        accuracy: shape (..., B, C). NaN is chosen only if all values are NaN.

    Returns:
        Two arrays of shape (...).
    """
    flat = np.nan_to_num(accuracy.reshape(*accuracy.shape[:-2], -1), nan=-np.inf)
    return np.unravel_index(flat.argmax(axis=-1), accuracy.shape[-2:])


def at(values: Array, rows: npt.NDArray[np.intp], columns: npt.NDArray[np.intp]) -> Array:
    """Return the values, shape (..., B, C), at positions of shape (...)."""
    found: Array = at_each(values, rows[..., np.newaxis], columns[..., np.newaxis])[..., 0]
    return found


def at_each(values: Array, rows: npt.NDArray[np.intp], columns: npt.NDArray[np.intp]) -> Array:
    """Return the values, shape (..., B, C), at several positions, shape (..., positions)."""
    flat = values.reshape(*values.shape[:-2], -1)
    found: Array = np.take_along_axis(flat, rows * values.shape[-1] + columns, axis=-1)
    return found


def grids(trials: pd.DataFrame, test_sizes: Mapping[str, int] | None = None) -> list[AccuracyGrid]:
    """Return all private grids of flat clipping in the trials that have an accuracy.

    While a study is extended, cells of a grid may have different numbers of seeds. Then the grid has the
    seeds that all cells with more than one seed share.

    Args:
        trials: a row per trial, as `dpsweep.analysis.frames.load_trials` reads them.
        test_sizes: number of test examples by dataset name; for other datasets, noise of the test set
            is ignored.
    """
    if trials.empty:
        return []
    private = trials[(trials["clipping"] == "flat") & np.isfinite(trials["epsilon"])]
    found = []
    for conditions, group in private.groupby(list(CONDITIONS)):
        dataset, backbone, method, optimizer, epsilon, epochs = conditions
        cells = {axis: np.sort(group[axis].unique()) for axis in ("batch_size", "clipping_bound")}
        tuned = with_shared_seeds(repeats(group))
        first = group[group["seed"] == group["seed"].min()].drop_duplicates("trial_key")
        grid = AccuracyGrid(
            str(dataset), str(backbone), str(method), str(optimizer), float(epsilon), int(epochs),
            tuple(map(int, cells["batch_size"])), tuple(map(float, cells["clipping_bound"])),
            _table(tuned, cells, "seed", "selection_accuracy"),
            _table(tuned, cells, "seed", "macro_accuracy"),
            _table(first, cells, "learning_rate", "selection_accuracy"),
            (test_sizes or {}).get(str(dataset), math.inf),
        )  # fmt: skip
        if not np.isnan(grid.selection).all():
            found.append(grid)
    return found


def _table(rows: pd.DataFrame, cells: dict[str, Array], last: str, value: str) -> Array:
    """Return a column of the rows as an array of shape (B, C, values of ``last``), NaN if absent."""
    axes = cells | {last: np.sort(rows[last].unique())}
    values = np.full([len(axis) for axis in axes.values()], np.nan)
    values[tuple(np.searchsorted(axis, rows[name]) for name, axis in axes.items())] = rows[value]
    return values


def with_shared_seeds(tuned: pd.DataFrame) -> pd.DataFrame:
    """Keep the seeds that all cells with two or more seeds share; keep all if they share fewer than two."""
    of_cells = tuned.groupby(CELL)["seed"].agg(set)
    several = [seeds for seeds in of_cells if len(seeds) > 1]
    shared = set.intersection(*several) if several else set()
    return tuned[tuned["seed"].isin(shared)] if len(shared) > 1 else tuned


def alike(found: Iterable[AccuracyGrid], condition: Condition) -> list[list[AccuracyGrid]]:
    """Return groups of two or more grids that differ in one condition only, in ascending order of it."""
    others = [name for name in CONDITIONS if name != condition]
    groups: dict[tuple[object, ...], list[AccuracyGrid]] = {}
    for grid in found:
        groups.setdefault(tuple(getattr(grid, name) for name in others), []).append(grid)
    return [
        sorted(group, key=lambda grid: getattr(grid, condition))
        for _, group in sorted(groups.items())
        if len(group) > 1
    ]


def with_common(group: Sequence[AccuracyGrid], axis: Axis) -> list[AccuracyGrid]:
    """Restrict grids to the values of an axis that are complete in all of them.

    Grids with fewer than two complete values are left out. The list is empty if fewer than two grids, or
    fewer than two common values, remain.
    """
    present = [grid for grid in group if len(grid.complete(axis)) > 1]
    if len(present) < 2:
        return []
    common = set.intersection(*(grid.complete(axis) for grid in present))
    return [grid.among(axis, common) for grid in present] if len(common) > 1 else []


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
            are replaced (`dpsweep.analysis.statistics.without_diverged`).

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
