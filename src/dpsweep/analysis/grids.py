"""Grids of accuracies over batch size and clipping bound: one for every (problem, epsilon, epochs)."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

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
