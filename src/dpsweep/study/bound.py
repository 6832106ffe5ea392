"""A study with its roles: replaces the roles of a selection by names, and its words by values.

A grid is a product of axes. The axes are resolved in the order of `dpsweep.config.selections.AXES`.
A selection may have a value of an axis if the grid has it with every combination of the values chosen before.
"""

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpsweep.config.cells import Problem, number
from dpsweep.config.clipping import RULES, clipping_kind, nearest_to_one
from dpsweep.config.file import StudyFile
from dpsweep.config.messages import shorten, unknown
from dpsweep.config.selections import AXES, DEFAULTS, NAMED, PARTS, Selection, is_given
from dpsweep.study.captions import listed
from dpsweep.study.targets import MistakeError, NotDrawnError, Target

# The batch size "small" has at most this many steps an epoch.
_MOST_STEPS = 100
# The part of an ascending list of values that each word stands for.
_ENDS = {
    **dict.fromkeys(("loose", "many", "large"), slice(-1, None)),
    **dict.fromkeys(("tight", "few", "small"), slice(1)),
    "common": slice(None),
}
_NOUNS = {axis: axis.replace("_", " ") for axis in AXES}

Grid = Mapping[str, frozenset[Any]]
"""The values of a sweep by axis."""


@dataclass
class BoundSelection:
    """A selection with names in place of roles, and the values of its axes as they get resolved.

    Attributes:
        where: its key path.
        selection: with names for roles, and lists of values for the axes that have been resolved.
        grids: those of the sweeps that train its problem.
        target: the figure or table that draws it; None outside of a target.
        drawn: axes that must have two values or more.
        candidates: by axis, the values that it may have.
        chosen: by axis, the values that it has.
    """

    where: str
    selection: Selection
    grids: Sequence[Grid]
    target: Target | None
    drawn: tuple[str, ...] = ()
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
        """Return its value or word for an axis; None means all values."""
        value = getattr(self.selection, axis)
        return "usual" if value is None and axis == "epochs" else value

    def values(self, axis: str, chosen: Mapping[str, list[Any]] | None = None) -> list[Any]:
        """Return the values of an axis that exist with every combination of the chosen ones, ascending."""
        chosen = self.chosen if chosen is None else chosen
        every = {value for grid in self.grids for value in grid[axis]}
        complete = (value for value in every if self._has({**chosen, axis: [value]}))
        return sorted(complete, key=lambda value: (isinstance(value, str), value))

    def drawable(self, axis: str) -> list[Any]:
        """Return the `values` that leave two values or more for each drawn axis."""
        later = [each for each in self.drawn if each != axis and each not in self.chosen]
        return [
            value
            for value in self.values(axis)
            if all(len(self.values(each, self.chosen | {axis: [value]})) > 1 for each in later)
        ]

    def _has(self, values: Mapping[str, list[Any]]) -> bool:
        """Return whether the grids have every combination of some values."""
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
    """A study with its roles; replaces roles by names, and words by values of the grids.

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
            where: the key path, for an error message.
            part: dataset, backbone, method or optimizer; optimizers have no roles.
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
        """Return the only name that a role or a name stands for; arguments as of `names`.

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

    def bind(
        self, where: str, selection: Selection, target: Target | None = None
    ) -> BoundSelection:
        """Replace the roles of a selection by names, and add defaults for the parts of its problem.

        Args:
            where: its key path.
            selection: as in the file.
            target: the figure or table that draws it; it can require several values of an axis.

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
        # An axis with values in the file may have a single one. Only flat clipping has bounds to draw.
        drawn = tuple(
            axis
            for axis in (target.drawn_axes() if target else ())
            if not is_given(getattr(selection, axis))
            and (kind == "flat" or axis != "clipping_bound")
        )
        named = selection.model_copy(update=names)
        return BoundSelection(where, named, grids, target, drawn)

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

    def resolve(self, selections: Sequence[BoundSelection], series: bool = False) -> None:
        """Give every axis of the selections of a target a list of values.

        Args:
            selections: the selections, which are changed.
            series: whether each value of an axis gets a panel or figure of its own.

        Raises:
            NotDrawnError: the study lacks cells.
            MistakeError: a value that does not exist, one too many, or no C where C is drawn.
        """
        for each in selections:
            kind = clipping_kind(each.selection.clipping_bound)
            if each.target is not None and each.target.needs_bounds and kind != "flat":
                raise MistakeError(
                    f"{each.where}.clipping_bound: found {kind}; allowed: numbers (a "
                    f"{each.target.family} figure draws C)"
                )
        for axis in AXES:
            for each in selections:
                each.candidates[axis] = each.drawable(axis)
            chosen = [self._values(axis, each, selections) for each in selections]
            for each, values in zip(selections, chosen, strict=True):
                each.chosen[axis] = values
                each.selection = each.selection.model_copy(update={axis: values})
        for each in selections:
            _check(each, series)

    def compared_bound(self, selections: Sequence[BoundSelection]) -> float:
        """Return the clipping bound of the word baseline, among those that all selections may have.

        Args:
            selections: the selections, resolved; at least one.

        Raises:
            NotDrawnError: they have none in common.
            MistakeError: the study names a bound that its grid does not have.
        """
        bounds = [each.candidates["clipping_bound"] for each in selections]
        common = [each for each in _shared(bounds) if not isinstance(each, str)]
        found: list[float] = self._about_baseline("baseline", selections[0], common)
        if not found:
            raise NotDrawnError("its panels have no clipping bound in common")
        return found[0]

    def _values(
        self, axis: str, selection: BoundSelection, selections: Sequence[BoundSelection]
    ) -> list[Any]:
        """Return the values of an axis for one of the selections of a target."""
        wanted = selection.wanted(axis)
        if wanted is None or wanted == "all" or clipping_kind(wanted) != "flat":
            found = selection.candidates[axis]
        elif is_given(wanted):
            found = list(dict.fromkeys(wanted if isinstance(wanted, list) else [wanted]))
            _allow(f"{selection.where}.{axis}", selection, found, selection.values(axis))
        else:
            found = self._stands_for(wanted, axis, selection, selections)
        if axis == "epochs" and wanted == "all" and len(found) == 1:
            raise NotDrawnError(f"{selection.problem} has one number of epochs, {found[0]}")
        if not found:
            drawn = [_NOUNS[each] for each in selection.drawn if each != axis]
            several = f" with two {listed(drawn)}s or more" if drawn else ""
            raise NotDrawnError(
                f"{selection.problem} has no {_NOUNS[axis]}{several} that all parts share"
            )
        return found

    def _stands_for(
        self,
        word: str,
        axis: str,
        selection: BoundSelection,
        selections: Sequence[BoundSelection],
    ) -> list[Any]:
        """Return the values of a word, ascending: those that all selections with it share for the dataset."""
        about_baseline = ("baseline", "neighbours")
        words = about_baseline if word in about_baseline else (word,)
        dataset = selection.dataset
        common = _shared(
            [
                each.candidates[axis]
                for each in selections
                if each.dataset == dataset and each.wanted(axis) in words
            ]
        )
        if word in about_baseline:
            return self._about_baseline(word, selection, common)
        if word == "usual":
            cells = self._cells_by_epochs
            return sorted(common, key=lambda epochs: (cells[dataset, epochs], epochs))[-1:]
        if word == "small" and axis == "batch_size":
            steps = self.study.steps
            few = [size for size in common if steps(dataset, 1, size) <= _MOST_STEPS]
            return few[:1] or common[-1:]
        return common[_ENDS[word]]

    def _about_baseline(
        self, word: str, selection: BoundSelection, common: list[float]
    ) -> list[float]:
        """Return the baseline, or with the word neighbours also the bounds next to it.

        The study may name all three for a method; else the baseline is the bound nearest to 1.
        """
        method = str(selection.selection.method)
        if given := self.study.roles.neighbours.get(method):
            allowed = selection.candidates["clipping_bound"]
            _allow(f"roles.neighbours.{method}", selection, given, allowed)
            return given[1:2] if word == "baseline" else given
        if not common:
            return []
        baseline = nearest_to_one(common)
        if word == "baseline":
            return [baseline]
        if len(common) == 1:
            raise NotDrawnError(f"{selection.problem} has one clipping bound, {number(baseline)}")
        position = common.index(baseline)
        return common[max(0, position - 1) : position + 2]


def _shared(lists: Sequence[list[Any]]) -> list[Any]:
    """Return the values that are in all lists."""
    return [value for value in lists[0] if all(value in each for each in lists)]


def _allow(where: str, selection: BoundSelection, values: list[Any], allowed: list[Any]) -> None:
    for value in values:
        if value not in allowed:
            raise MistakeError(
                f"{where}: found {number(value)}; allowed ({selection.problem}): "
                f"{shorten(map(number, allowed))}"
            )


def _check(selection: BoundSelection, series: bool) -> None:
    """Refuse a selection that does not fit its target."""
    target, chosen = selection.target, selection.chosen
    for axis in target.single_axes() if target else ():
        if len(chosen[axis]) > 1 and not series:
            raise MistakeError(
                f"{selection.where}.{axis}: found {shorten(map(number, chosen[axis]))}; allowed: one "
                f"of them (a {target and target.family} draws one {axis} here)"
            )
    for axis in selection.drawn:
        if len(chosen[axis]) < 2:
            raise NotDrawnError(
                f"{selection.problem} has one {_NOUNS[axis]}, {number(chosen[axis][0])}"
            )
