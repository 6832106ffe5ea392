"""Accuracies over batch size and clipping bound, a grid for every (problem, epsilon, epochs)."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from dpsweep.choice import best_by_mean, cross_fitted, repeats

Array = npt.NDArray[np.float64]
Position = tuple[int, int]
Condition = Literal["dataset", "backbone", "method", "optimizer", "epsilon", "epochs"]

CONDITIONS: tuple[Condition, ...] = (
    "dataset", "backbone", "method", "optimizer", "epsilon", "epochs",
)  # fmt: skip
"""What two grids may differ in."""


@dataclass(frozen=True)
class Grid:
    """Accuracies of one (problem, epsilon, epochs) over (B, C), at each cell's best learning rate.

    Attributes:
        dataset, backbone, method, optimizer: the problem, by the names of the study.
        epsilon: privacy budget.
        epochs: passes over the data.
        batch_sizes: B, ascending; the full batch is a number here.
        bounds: C, ascending.
        selection: what choices are made by, shape (B, C, repeats), the first seed first. NaN where a
            cell or repeat is absent.
        accuracy: on the test set, same shape.
    """

    dataset: str
    backbone: str
    method: str
    optimizer: str
    epsilon: float
    epochs: int
    batch_sizes: tuple[int, ...]
    bounds: tuple[float, ...]
    selection: Array
    accuracy: Array

    @property
    def best(self) -> Position:
        """Position (B, C) that the rule of choice takes: the smallest B, then C, on ties."""
        return self.best_among(range(len(self.batch_sizes)), range(len(self.bounds)))

    @property
    def best_batch_size(self) -> int:
        """B of the choice."""
        return self.batch_sizes[self.best[0]]

    @property
    def best_bound(self) -> float:
        """C of the choice."""
        return self.bounds[self.best[1]]

    @property
    def reached(self) -> float:
        """Mean test accuracy of the choice over all repeats."""
        return float(self.accuracy[self.best].mean())

    def best_among(self, rows: Sequence[int], columns: Sequence[int]) -> Position:
        """Position of the choice among some rows (B) and columns (C)."""
        position = best_by_mean(self._cells(self.selection[np.ix_(rows, columns)]))
        return rows[position // len(columns)], columns[position % len(columns)]

    def gain(
        self, choose: Callable[["Grid"], Position], instead: Callable[["Grid"], Position]
    ) -> float:
        """Cross-fitted accuracy of one way of choosing minus that of another.

        Args:
            choose: takes this grid with the repeats of some seeds only, returns a position (B, C).
            instead: what it is compared with.

        Returns:
            NaN with a single repeat (see `dpsweep.choice.cross_fitted`).
        """
        return self._cross_fitted(choose) - self._cross_fitted(instead)

    def among(
        self, batch_sizes: Iterable[int] | None = None, bounds: Iterable[float] | None = None
    ) -> "Grid":
        """This grid with some of its B or C only."""
        rows, columns = (
            [i for i, value in enumerate(own) if wanted is None or value in wanted]
            for own, wanted in (
                (self.batch_sizes, None if batch_sizes is None else set(batch_sizes)),
                (self.bounds, None if bounds is None else set(bounds)),
            )
        )
        return replace(
            self,
            batch_sizes=tuple(self.batch_sizes[i] for i in rows),
            bounds=tuple(self.bounds[i] for i in columns),
            selection=self.selection[np.ix_(rows, columns)],
            accuracy=self.accuracy[np.ix_(rows, columns)],
        )

    def _cross_fitted(self, way: Callable[["Grid"], Position]) -> float:
        def choose(cells: Array) -> int:
            seen = replace(self, selection=cells.reshape(*self.selection.shape[:2], -1))
            row, column = way(seen)
            return row * len(self.bounds) + column

        return cross_fitted(self._cells(self.selection), self._cells(self.accuracy), choose)

    @staticmethod
    def _cells(values: Array) -> Array:
        cells: Array = values.reshape(-1, values.shape[-1])
        return cells


def grids(trials: pd.DataFrame) -> list[Grid]:
    """All private grids of flat clipping in the trials; one without any accuracy is left out."""
    if trials.empty:
        return []
    rows = repeats(trials)
    rows = rows[(rows["clipping"] == "flat") & np.isfinite(rows["epsilon"])]
    found = []
    for conditions, group in rows.groupby(list(CONDITIONS)):
        axes = ["batch_size", "clipping_bound", "seed"]
        values = [np.sort(group[axis].unique()) for axis in axes]
        places = tuple(
            np.searchsorted(each, group[axis]) for axis, each in zip(axes, values, strict=True)
        )
        selection, accuracy = (np.full([len(each) for each in values], np.nan) for _ in range(2))
        selection[places] = group["selection_accuracy"]
        accuracy[places] = group["macro_accuracy"]
        if np.isnan(selection.mean(axis=2)).all():
            continue
        dataset, backbone, method, optimizer, epsilon, epochs = conditions
        found.append(
            Grid(
                str(dataset), str(backbone), str(method), str(optimizer), float(epsilon),
                int(epochs), tuple(map(int, values[0])), tuple(map(float, values[1])),
                selection, accuracy,
            )
        )  # fmt: skip
    return found


def alike(found: Iterable[Grid], condition: Condition) -> list[list[Grid]]:
    """Grids that agree in all conditions but one, two or more of them, that one ascending."""
    others = [name for name in CONDITIONS if name != condition]
    groups: dict[tuple[object, ...], list[Grid]] = {}
    for grid in found:
        groups.setdefault(tuple(getattr(grid, name) for name in others), []).append(grid)
    return [
        sorted(group, key=lambda grid: getattr(grid, condition))
        for _, group in sorted(groups.items())
        if len(group) > 1
    ]


def with_common_bounds(group: list[Grid]) -> list[Grid]:
    """The grids with the C that all of them have; none of them where fewer than two are common."""
    common = set.intersection(*(set(grid.bounds) for grid in group))
    return _usable([grid.among(bounds=common) for grid in group]) if len(common) > 1 else []


def with_common_batch_sizes(group: list[Grid]) -> list[Grid]:
    """The grids with the B that all of them have; none of them where fewer than two are common."""
    common = set.intersection(*(set(grid.batch_sizes) for grid in group))
    return _usable([grid.among(batch_sizes=common) for grid in group]) if len(common) > 1 else []


def _usable(group: list[Grid]) -> list[Grid]:
    filled = [grid for grid in group if not np.isnan(grid.selection.mean(axis=2)).all()]
    return filled if len(filled) > 1 else []
