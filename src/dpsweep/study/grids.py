"""Which values the grids of a study have for a selection: the arithmetic behind its words."""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dpsweep.study.config.sweeps import Sweep
from dpsweep.study.selections import AXES

Values = tuple[Any, ...]
_Place = tuple[int, float, Any, Any]  # the axes of a cell, in the order of AXES


@dataclass(frozen=True)
class Chosen:
    """The cells of a problem, narrowed down axis by axis.

    Attributes:
        problem: its name.
        clipping: flat, automatic or none.
        private: leave out epsilon = infinity.
        axes: what has been chosen, (axis, values) each.
    """

    problem: str
    clipping: str
    private: bool
    axes: tuple[tuple[str, Values], ...] = ()

    def choose(self, axis: str, values: Sequence[Any]) -> "Chosen":
        """These cells at some values of one more axis."""
        return Chosen(self.problem, self.clipping, self.private, (*self.axes, (axis, (*values,))))


class Grids:
    """The cells of a study by what they are.

    Args:
        sweeps: all of them; a cell that two of them have counts once.
    """

    def __init__(self, sweeps: Iterable[Sweep]) -> None:
        self._cells: dict[tuple[str, str], dict[_Place, None]] = {}
        for sweep in sweeps:
            bound = sweep.clipping_bound
            kind = bound if isinstance(bound, str) else "flat"
            epsilon, epochs, batch_sizes, bounds = sweep.axes
            places = itertools.product(epochs, epsilon, bounds, batch_sizes)
            cells = self._cells.setdefault((sweep.problem.name, kind), {})
            cells.update(dict.fromkeys(places))
        self._epochs = {
            key: Counter(epochs for epochs, *_ in places) for key, places in self._cells.items()
        }
        self._known: dict[tuple[Chosen, str], list[Any]] = {}
        self._narrowed: dict[Chosen, list[_Place]] = {}

    def has(self, problem: str, clipping: str) -> bool:
        """Whether a problem is trained with flat, automatic or no clipping."""
        return (problem, clipping) in self._cells

    def values(self, chosen: Chosen, axis: str) -> list[Any]:
        """The values of an axis that go with every combination of what has been chosen, ascending."""
        key = chosen, axis
        if key not in self._known:
            self._known[key] = self._find(chosen, axis)
        return self._known[key]

    def drawable(self, chosen: Chosen, axis: str, drawn: Sequence[str]) -> list[Any]:
        """Those of `values` that leave two values or more on each of the ``drawn`` axes."""
        before = {name for name, _ in chosen.axes} | {axis}
        return [
            value
            for value in self.values(chosen, axis)
            if all(
                len(self.values(chosen.choose(axis, [value]), each)) > 1
                for each in drawn
                if each not in before
            )
        ]

    def count(self, problems: Sequence[str], epochs: int) -> int:
        """How many cells of some problems are trained for a number of epochs."""
        return sum(
            counted[epochs] for (problem, _), counted in self._epochs.items() if problem in problems
        )

    def _find(self, chosen: Chosen, axis: str) -> list[Any]:
        position = AXES.index(axis)
        before = [AXES.index(name) for name, _ in chosen.axes]
        needed = math.prod(len(values) for _, values in chosen.axes)
        found: dict[Any, set[Values]] = {}
        for place in self._places(chosen):
            others = tuple(place[where] for where in before)
            found.setdefault(place[position], set()).add(others)
        complete = [value for value, others in found.items() if len(others) == needed]
        return sorted(complete, key=lambda value: (isinstance(value, str), value))

    def _places(self, chosen: Chosen) -> list[_Place]:
        if chosen not in self._narrowed:
            if chosen.axes:
                *before, (axis, values) = chosen.axes
                wider, position = replace(chosen, axes=tuple(before)), AXES.index(axis)
                places = [each for each in self._places(wider) if each[position] in values]
            else:
                every = self._cells.get((chosen.problem, chosen.clipping), ())
                places = [each for each in every if not (chosen.private and math.isinf(each[1]))]
            self._narrowed[chosen] = places
        return self._narrowed[chosen]
