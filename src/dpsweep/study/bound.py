"""A study with its roles: names for the roles of a selection, and values for its words.

A grid is a product of axes. What a selection may have of an axis are the values that go with every
combination of what has been chosen before, in the order of `dpsweep.config.selections.AXES`.
"""

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpsweep.config.cells import BatchSize, Problem, number
from dpsweep.config.clipping import RULES, clipping_kind, nearest_to_one
from dpsweep.config.file import StudyFile
from dpsweep.config.messages import shorten, unknown
from dpsweep.config.selections import AXES, DEFAULTS, NAMED, PARTS, Selection, is_given
from dpsweep.study.captions import listed
from dpsweep.study.targets import Target

# Steps of an epoch that can be drawn one by one.
_MOST_STEPS = 100
# Of values in ascending order.
_ENDS = {
    **dict.fromkeys(("loose", "many", "large"), slice(-1, None)),
    **dict.fromkeys(("tight", "few", "small"), slice(1)),
    "common": slice(None),
}
_NOUNS = {axis: axis.replace("_", " ") for axis in AXES}

Grid = Mapping[str, frozenset[Any]]
"""The values of a sweep by axis."""


class NotDrawnError(LookupError):
    """A target that the study does not have the cells for; the message says what it lacks."""


class MistakeError(ValueError):
    """A selection that is wrong in itself; the message names key, value and what is allowed."""


@dataclass
class Leaf:
    """A selection while its words get values, axis by axis.

    Attributes:
        where: its key path.
        selection: with names for roles; the axes that have been resolved have lists of values.
        grids: those of the sweeps that train it.
        target: what draws it, if anything does.
        candidates: by axis, the values that it may have.
        chosen: by axis, the values that it has.
    """

    where: str
    selection: Selection
    grids: Sequence[Grid]
    target: Target | None
    drawn: tuple[str, ...] = ()
    """axes that must have two values or more"""
    candidates: dict[str, list[Any]] = field(default_factory=dict)
    chosen: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def problem(self) -> str:
        """The name of its problem."""
        return self.selection.problem.name

    @property
    def dataset(self) -> str:
        """The name of its dataset."""
        return self.selection.problem.dataset

    def wanted(self, axis: str) -> Any:
        """The value or the word that it has for an axis; None for all values."""
        value = getattr(self.selection, axis)
        return "usual" if value is None and axis == "epochs" else value

    def values(self, axis: str, chosen: Mapping[str, list[Any]] | None = None) -> list[Any]:
        """The values of an axis that go with every combination of what has been chosen, ascending."""
        chosen = self.chosen if chosen is None else chosen
        every = {value for grid in self.grids for value in grid[axis]}
        complete = (value for value in every if self._has({**chosen, axis: [value]}))
        return sorted(complete, key=lambda value: (isinstance(value, str), value))

    def drawable(self, axis: str) -> list[Any]:
        """The `values` with which each drawn axis still has two values or more."""
        later = [each for each in self.drawn if each != axis and each not in self.chosen]
        return [
            value
            for value in self.values(axis)
            if all(len(self.values(each, self.chosen | {axis: [value]})) > 1 for each in later)
        ]

    def _has(self, values: Mapping[str, list[Any]]) -> bool:
        """Whether the grids have every combination of some values."""
        if any(
            all(grid[axis].issuperset(wanted) for axis, wanted in values.items())
            for grid in self.grids
        ):
            return True
        return len(self.grids) > 1 and all(
            any(
                all(value in grid[axis] for axis, value in zip(values, place, strict=True))
                for grid in self.grids
            )
            for place in itertools.product(*values.values())
        )


class Bound:
    """A study with its roles, and in methods the words that a selection may have for values of its grids.

    Args:
        study: the study; its sections have been checked.
    """

    def __init__(self, study: StudyFile) -> None:
        self.study = study
        self._grids: dict[tuple[str, str], list[Grid]] = {}
        cells: set[tuple[Any, ...]] = set()
        for sweep in study.sweeps.values():
            name, kind = sweep.problem.name, clipping_kind(sweep.clipping_bound)
            grid = {axis: frozenset(values) for axis, values in sweep.axes.items()}
            self._grids.setdefault((name, kind), []).append(grid)
            cells.update(itertools.product([sweep.dataset], [name], *sweep.axes.values()))
        self._cells_by_epochs = Counter((dataset, epochs) for dataset, _, _, epochs, *_ in cells)

    # -- roles -------------------------------------------------------------------------------

    def names(self, where: str, part: str, role: str) -> list[str]:
        """Return the names that a role or a name stands for.

        Args:
            where: key path of what is looked up, for a mistake.
            part: dataset, backbone, method or optimizer, which has no roles.
            role: a role, or a name.

        Raises:
            NotDrawnError: the role is not bound.
            MistakeError: it is neither a role nor a name.
        """
        if part not in PARTS:
            if role not in self.study.every_optimizer:
                raise MistakeError(f"{where}.{part}: {unknown(role, self.study.every_optimizer)}")
            return [role]
        bound = self.study.roles.bound(part, role)
        section: dict[str, Any] = getattr(self.study, f"{part}s")
        if bound:
            return bound
        if role in section:
            return [role]
        if bound is None:
            allowed = [*self.study.roles.roles_of(part), *section]
            raise MistakeError(f"{where}.{part}: {unknown(role, allowed)}")
        raise NotDrawnError(f"roles.{part}s.{role} is not bound")

    def name(self, where: str, part: str, role: str) -> str:
        """Return the only name that a role or a name stands for.

        Args:
            where: as for `names`.
            part: dataset, backbone or method.
            role: a role, or a name.

        Raises:
            NotDrawnError: the role is not bound.
            MistakeError: there are several names, or none.
        """
        first, *others = self.names(where, part, role)
        if others:
            raise MistakeError(
                f"{where}.{part}: found {role}, which stands for {listed([first, *others])}; allowed: "
                f"one name, or each=({part!r},)"
            )
        return first

    def leaf(self, where: str, selection: Selection, target: Target | None = None) -> Leaf:
        """Put names in place of the roles of a selection, and fill in what it leaves out about the problem.

        Args:
            where: its key path.
            selection: as the file has it.
            target: what draws it, for what that needs of a selection.

        Raises:
            NotDrawnError: a role is not bound, or no sweep trains the problem.
            MistakeError: an unknown name, or a role that stands for several.
        """
        names = {
            part: self.name(where, part, getattr(selection, part) or DEFAULTS[part])
            for part in NAMED
        }
        problem = Problem(**names)
        kind = clipping_kind(selection.clipping_bound)
        if (problem.name, kind) not in self._grids:
            untrained = f"no sweep trains {self._described(problem, kind)}"
            if all(getattr(selection, part) == names[part] for part in PARTS):
                allowed = ", ".join(self.study.problems)
                raise MistakeError(f"{where}: {untrained}; allowed: {allowed}")
            raise NotDrawnError(untrained)
        grids = self._grids[problem.name, kind]
        bounded = kind == "flat" or math.isfinite(RULES[kind].sensitivity)
        if bounded and math.inf not in selection.values("epsilon"):
            private = [{**grid, "epsilon": grid["epsilon"] - {math.inf}} for grid in grids]
            grids = [grid for grid in private if grid["epsilon"]]
        # What the file says in numbers is as it is meant. Only flat clipping has bounds to draw.
        drawn = tuple(
            axis
            for axis in (target.drawn_axes() if target else ())
            if not is_given(getattr(selection, axis))
            and (kind == "flat" or axis != "clipping_bound")
        )
        named = selection.model_copy(update=names)
        return Leaf(where, named, grids, target, drawn)

    def _described(self, problem: Problem, clipping: str) -> str:
        study = self.study
        return (
            f"{study.backbones[problem.backbone].title} with {study.methods[problem.method].title} "
            f"on {study.datasets[problem.dataset].title}"
            + (
                f" by {study.optimizer(problem.optimizer).called()}"
                if problem.optimizer != DEFAULTS["optimizer"]
                else ""
            )
            + (f" with clipping_bound {clipping}" if clipping != "flat" else "")
        )

    # -- words -------------------------------------------------------------------------------

    def resolve(self, leaves: Sequence[Leaf], series: bool = False) -> None:
        """Give all selections of a target lists of values.

        Args:
            leaves: the selections, which are changed.
            series: whether the values of an axis will be drawn one by one.

        Raises:
            NotDrawnError: the study lacks cells.
            MistakeError: a value that does not exist, one too many, or no C where C is drawn.
        """
        for leaf in leaves:
            kind = clipping_kind(leaf.selection.clipping_bound)
            if leaf.target is not None and leaf.target.needs_bounds and kind != "flat":
                raise MistakeError(
                    f"{leaf.where}.clipping_bound: found {kind}; allowed: numbers (a "
                    f"{leaf.target.family} figure draws C)"
                )
        for axis in AXES:
            for leaf in leaves:
                leaf.candidates[axis] = leaf.drawable(axis)
            chosen = [self._values(axis, leaf, leaves) for leaf in leaves]
            for leaf, values in zip(leaves, chosen, strict=True):
                leaf.chosen[axis] = values
                leaf.selection = leaf.selection.model_copy(update={axis: values})
        for leaf in leaves:
            _check(leaf, series)

    def compared_bound(self, leaves: Sequence[Leaf]) -> float:
        """The clipping bound that the word baseline stands for, of those that all selections may have.

        Args:
            leaves: the selections, resolved; at least one.

        Raises:
            NotDrawnError: they have none in common.
            MistakeError: the study names a bound that its grid has not.
        """
        bounds = [leaf.candidates["clipping_bound"] for leaf in leaves]
        common = [each for each in _shared(bounds) if not isinstance(each, str)]
        found: list[float] = self._about_baseline("baseline", leaves[0], common)
        if not found:
            raise NotDrawnError("its panels have no clipping bound in common")
        return found[0]

    def _values(self, axis: str, leaf: Leaf, leaves: Sequence[Leaf]) -> list[Any]:
        """The values of an axis that a selection of a target has."""
        wanted = leaf.wanted(axis)
        if wanted is None or wanted == "all" or clipping_kind(wanted) != "flat":
            found = leaf.candidates[axis]
        elif is_given(wanted):
            found = list(dict.fromkeys(wanted if isinstance(wanted, list) else [wanted]))
            _allow(f"{leaf.where}.{axis}", leaf, found, leaf.values(axis))
        else:
            found = self._stands_for(wanted, axis, leaf, leaves)
        if axis == "epochs" and wanted == "all" and len(found) == 1:
            raise NotDrawnError(f"{leaf.problem} has one number of epochs, {found[0]}")
        if not found:
            drawn = [_NOUNS[each] for each in leaf.drawn if each != axis]
            several = f" with two {listed(drawn)}s or more" if drawn else ""
            raise NotDrawnError(
                f"{leaf.problem} has no {_NOUNS[axis]}{several} that all parts share"
            )
        return found

    def _stands_for(self, word: str, axis: str, leaf: Leaf, leaves: Sequence[Leaf]) -> list[Any]:
        """The values of a word, of those that all selections of the dataset with it have, ascending."""
        words = ("baseline", "neighbours") if word in ("baseline", "neighbours") else (word,)
        common = _shared(
            [
                each.candidates[axis]
                for each in leaves
                if each.dataset == leaf.dataset and each.wanted(axis) in words
            ]
        )
        if word == "small" and axis == "batch_size":
            return self.few_steps(common, leaf.dataset)
        if word in ("baseline", "neighbours"):
            return self._about_baseline(word, leaf, common)
        return self.usual(common, leaf.dataset) if word == "usual" else common[_ENDS[word]]

    # -- the words ---------------------------------------------------------------------------

    def usual(self, epochs: Sequence[int], dataset: str) -> list[int]:
        """Return the number of epochs that most cells of a dataset are trained for."""
        cells = self._cells_by_epochs
        return sorted(epochs, key=lambda each: (cells[dataset, each], each))[-1:]

    def few_steps(self, sizes: Sequence[BatchSize], dataset: str) -> list[BatchSize]:
        """Return the smallest batch size that takes at most 100 steps an epoch; else the largest."""
        steps = self.study.steps
        few = [size for size in sizes if steps(dataset, 1, size) <= _MOST_STEPS]
        return list(few[:1] or sizes[-1:])

    def baseline(self, bounds: Sequence[float], method: str) -> list[float]:
        """Return the bound that others are compared with: the study's, or the nearest to 1."""
        given = self.study.roles.neighbours.get(method)
        return given[1:2] if given else [nearest_to_one(bounds)] if bounds else []

    def neighbours(self, bounds: Sequence[float], method: str) -> list[float]:
        """Return the baseline of some clipping bounds, and the bounds next to it."""
        given = self.study.roles.neighbours.get(method)
        if given or not bounds:
            return given or []
        position = list(bounds).index(nearest_to_one(bounds))
        return list(bounds[max(0, position - 1) : position + 2])

    def _about_baseline(self, word: str, leaf: Leaf, common: list[float]) -> list[float]:
        """The baseline, or it and its neighbours, which a selection must have."""
        method = str(leaf.selection.method)
        if given := self.study.roles.neighbours.get(method):
            _allow(f"roles.neighbours.{method}", leaf, given, leaf.candidates["clipping_bound"])
        if word == "baseline":
            return self.baseline(common, method)
        found = self.neighbours(common, method)
        if len(found) == 1:
            raise NotDrawnError(f"{leaf.problem} has one clipping bound, {number(found[0])}")
        return found


def _shared(lists: Sequence[list[Any]]) -> list[Any]:
    """The values that are in all lists."""
    return [value for value in lists[0] if all(value in each for each in lists)]


def _allow(where: str, leaf: Leaf, values: list[Any], allowed: list[Any]) -> None:
    for value in values:
        if value not in allowed:
            raise MistakeError(
                f"{where}: found {number(value)}; allowed ({leaf.problem}): "
                f"{shorten(map(number, allowed))}"
            )


def _check(leaf: Leaf, series: bool) -> None:
    """Refuse a selection that has not what its target needs."""
    target = leaf.target
    for axis in target.single_axes() if target else ():
        if len(leaf.chosen[axis]) > 1 and not series:
            raise MistakeError(
                f"{leaf.where}.{axis}: found {shorten(map(number, leaf.chosen[axis]))}; allowed: one "
                f"of them (a {target and target.family} draws one {axis} here)"
            )
    for axis in leaf.drawn:
        if len(leaf.chosen[axis]) < 2:
            raise NotDrawnError(
                f"{leaf.problem} has one {_NOUNS[axis]}, {number(leaf.chosen[axis][0])}"
            )
