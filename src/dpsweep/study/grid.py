"""Grids: the cells that figures and tables select from.

A study has a grid for each problem and kind of clipping. A figure takes the values that it wants:

    grid = grids.one("main", "weak", "main")            # roles, or names
    panel = Panel.of(grid.at(epsilon=max(grid.epsilon)))

The cells of a panel are a full product of its axes: an axis has only the values that the grid has with every
combination of the values chosen before. A panel gets from its grid what it does not choose: the usual number
of epochs (`usual`), and every value of the other axes.
"""

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

from pydantic import Field

from dpsweep.study.cells import AXES, CELL_AXES, NAMED, PARTS, BatchSize, Cell, Problem, number
from dpsweep.study.clipping import RULES, ClippingBound, nearest_to_one
from dpsweep.study.messages import nearest, shorten, unknown
from dpsweep.study.section import Settings

if TYPE_CHECKING:
    from dpsweep.study.file import Study

MOST_STEPS = 100
"""The batch size of `smallest_batch` has at most this many steps an epoch."""
_NOUNS = {axis: axis.replace("_", " ") for axis in AXES} | {"epochs": "number of epochs"}

T = TypeVar("T")
Several = Annotated[list[T], Field(min_length=1)]
Block = Mapping[str, frozenset[Any]]
"""The values of a sweep by axis."""


class NotDrawnError(LookupError):
    """A target without cells in the study; the message names what is missing."""


class MistakeError(ValueError):
    """A wrong selection; the message names the key, the value and what is allowed."""


@dataclass(frozen=True)
class Grid:
    """The cells of a problem under one kind of clipping, and the values chosen of them.

    Attributes:
        study: the study.
        problem: the problem.
        clipping: the name of a rule (`dpsweep.study.clipping.RULES`), or flat.
        blocks: the values of each sweep that trains it.
        several: axes that must keep two values or more unless they are chosen, such as those of a map.
        chosen: the chosen values by axis.
    """

    study: "Study"
    problem: Problem
    clipping: str
    blocks: Sequence[Block]
    several: tuple[str, ...] = ()
    chosen: Mapping[str, list[Any]] = field(default_factory=dict)

    @property
    def epochs(self) -> list[int]:
        """The numbers of epochs, ascending."""
        return self.values("epochs")

    @property
    def epsilon(self) -> list[float]:
        """The privacy budgets, ascending; without infinity unless it is chosen."""
        return self.values("epsilon")

    @property
    def clipping_bound(self) -> list[ClippingBound]:
        """The clipping bounds, ascending."""
        return self.values("clipping_bound")

    @property
    def batch_size(self) -> list[BatchSize]:
        """The batch sizes, ascending; full is last."""
        return self.values("batch_size")

    def values(self, axis: str) -> list[Any]:
        """Return the values of an axis that exist with every combination of the chosen ones.

        Raises:
            NotDrawnError: there is none.
        """
        if axis in self.chosen:
            return self.chosen[axis]
        later = [each for each in self.several if each != axis and each not in self.chosen]
        found = [
            value
            for value in self._complete(axis, self.chosen)
            if all(len(self._complete(each, {**self.chosen, axis: [value]})) > 1 for each in later)
        ]
        if not found:
            nouns = " and ".join(f"two {_NOUNS[each]}s or more" for each in later)
            raise NotDrawnError(
                f"{self.problem.name} has no {_NOUNS[axis]}" + f" with {nouns}" * bool(later)
            )
        if axis in self.several and len(found) == 1:
            raise NotDrawnError(f"{self.problem.name} has one {_NOUNS[axis]}, {number(found[0])}")
        return found

    def at(self, **axes: Any) -> "Grid":
        """Return the grid at some values: a value or a list by axis.

        Raises:
            MistakeError: the grid does not have a value, or there is no such axis.
        """
        grid = self
        if unknown_axes := axes.keys() - {*AXES}:
            axis = min(unknown_axes)
            raise MistakeError(f"{axis}: unknown axis; {nearest(axis, AXES)}")
        for axis in sorted(axes, key=AXES.index):
            wanted = axes[axis]
            values = list(dict.fromkeys(wanted if isinstance(wanted, list) else [wanted]))
            chosen = {**grid.chosen, axis: values}
            every = {value for block in self.blocks for value in block[axis]}
            allowed = [each for each in every if grid._has({**grid.chosen, axis: [each]})]
            for value in values:
                if value not in allowed:
                    raise MistakeError(
                        f"{axis}: found {number(value)}; allowed ({self.problem.name}): "
                        f"{shorten(map(number, _ascending(allowed)))}"
                    )
            grid = replace(grid, chosen=chosen)
        return grid

    def at_usual_epochs(self) -> "Grid":
        """Return the grid at its usual number of epochs (`usual`)."""
        return self.at(epochs=usual([self]))

    def filled(self) -> "Grid":
        """Return the grid with values for all axes.

        Raises:
            NotDrawnError: an axis has no value, or one where it must have several.
        """
        grid = self
        for axis in AXES:
            if axis not in grid.chosen:
                one = axis == "epochs" and axis not in self.several
                grid = grid.at(**{axis: usual([grid]) if one else grid.values(axis)})
        return grid

    def _complete(self, axis: str, chosen: Mapping[str, list[Any]]) -> list[Any]:
        bounded = self.clipping == "flat" or math.isfinite(RULES[self.clipping].sensitivity)
        private = bounded and math.inf not in chosen.get("epsilon", ())
        every = {value for block in self._blocks(private) for value in block[axis]}
        return _ascending(value for value in every if self._has({**chosen, axis: [value]}, private))

    def _blocks(self, private: bool) -> Sequence[Block]:
        if not private:
            return self.blocks
        without = ({**block, "epsilon": block["epsilon"] - {math.inf}} for block in self.blocks)
        return [block for block in without if block["epsilon"]] or self.blocks

    def _has(self, values: Mapping[str, list[Any]], private: bool = False) -> bool:
        """Return whether the grid has every combination of some values."""
        blocks = self._blocks(private)
        if any(
            all(block[axis].issuperset(wanted) for axis, wanted in values.items())
            for block in blocks
        ):
            return True
        return len(blocks) > 1 and all(
            any(
                all(value in block[axis] for axis, value in zip(values, place, strict=True))
                for block in blocks
            )
            for place in itertools.product(*values.values())
        )


def _ascending(values: Iterable[Any]) -> list[Any]:
    return sorted(values, key=lambda value: (isinstance(value, str), value))


# -- values that several grids share -------------------------------------------------------------


def shared(axis: str, grids: Iterable[Grid]) -> list[Any]:
    """Return the values of an axis that all of some grids have, ascending.

    Raises:
        NotDrawnError: there is none, or one where a grid must have several.
    """
    first, *others = grids
    lists = [each.values(axis) for each in others]
    found = [value for value in first.values(axis) if all(value in each for each in lists)]
    if len(found) < 1 + (axis in first.several and axis not in first.chosen):
        count = f"one {_NOUNS[axis]}, {found[0]}," if found else f"no {_NOUNS[axis]}"
        raise NotDrawnError(f"{first.problem.name} has {count} that all parts share")
    return found


def usual(grids: Sequence[Grid]) -> int:
    """Return the number of epochs, shared by some grids, that most cells of their dataset have."""
    study, dataset = grids[0].study, grids[0].problem.dataset
    return int(
        max(
            shared("epochs", grids),
            key=lambda epochs: (study.cells_by_epochs[dataset, epochs], epochs),
        )
    )


def few(grids: Sequence[Grid]) -> int:
    """Return the smallest number of epochs that some grids share."""
    return int(min(shared("epochs", grids)))


def neighbours(grids: Sequence[Grid]) -> list[float]:
    """Return the shared clipping bound nearest to 1 and those next to it, ascending.

    A study can name the three bounds of a method (``roles.neighbours``).

    Raises:
        NotDrawnError: the grids share one bound or none.
        MistakeError: the study names a bound that a grid does not have.
    """
    if given := _given_neighbours(grids):
        return given
    bounds = shared("clipping_bound", grids)
    if len(bounds) == 1:
        name = grids[0].problem.name
        raise NotDrawnError(f"{name} has one clipping bound, {number(bounds[0])}")
    place = bounds.index(nearest_to_one(bounds))
    return bounds[max(0, place - 1) : place + 2]


def baseline(grids: Sequence[Grid]) -> float:
    """Return the middle one of the `neighbours`: the bound that others are compared with."""
    if given := _given_neighbours(grids):
        return given[1]
    return nearest_to_one(shared("clipping_bound", grids))


def _given_neighbours(grids: Sequence[Grid]) -> list[float] | None:
    method = grids[0].problem.method
    given = grids[0].study.roles.neighbours.get(method)
    for value in given or ():
        for allowed in (each.values("clipping_bound") for each in grids):
            if value not in allowed:
                raise MistakeError(
                    f"roles.neighbours.{method}: found {number(value)}; allowed "
                    f"({grids[0].problem.name}): {shorten(map(number, allowed))}"
                )
    return given


def smallest_batch(grids: Sequence[Grid]) -> BatchSize:
    """Return the smallest shared batch size with at most 100 steps an epoch, or the largest one."""
    study, dataset = grids[0].study, grids[0].problem.dataset
    sizes: list[BatchSize] = shared("batch_size", grids)
    quick = (size for size in sizes if study.steps(dataset, 1, size) <= MOST_STEPS)
    return next(quick, sizes[-1])


def by_dataset(grids: Sequence[Grid], **rules: Callable[[Sequence[Grid]], Any]) -> list[Grid]:
    """Return grids at values that those of the same dataset share.

    A grid that has chosen its values of an axis keeps them.

    Args:
        grids: the grids.
        rules: by axis, a function of the grids of a dataset that returns their value or values.
    """
    for axis, rule in rules.items():
        groups: dict[str, list[Grid]] = {}
        for each in grids:
            if axis not in each.chosen:
                groups.setdefault(each.problem.dataset, []).append(each)
        values = {name: rule(group) for name, group in groups.items()}
        grids = [
            each if axis in each.chosen else each.at(**{axis: values[each.problem.dataset]})
            for each in grids
        ]
    return list(grids)


# -- the grids of a study ------------------------------------------------------------------------


class Found(dict[Any, Grid]):
    """Grids by a label; one that the study does not have raises a `NotDrawnError`."""

    reasons: Mapping[str, None]

    def __missing__(self, label: object) -> Grid:
        raise NotDrawnError("; ".join(self.reasons))


class Grids:
    """The grids of a study, for one figure or table.

    Args:
        study: the study; its sections have been checked.

    Attributes:
        left_out: the reasons why parts of the figure are not drawn.
    """

    def __init__(self, study: "Study") -> None:
        self.study = study
        self.left_out: dict[str, None] = {}

    def one(
        self,
        dataset: str = "main",
        backbone: str = "weak",
        method: str = "main",
        optimizer: str = "adam",
        clipping: str = "flat",
        several: tuple[str, ...] = (),
    ) -> Grid:
        """Return the grid of a problem.

        Args:
            dataset: a role or a name.
            backbone: a role or a name.
            method: a role or a name.
            optimizer: a name.
            clipping: flat, automatic or none.
            several: axes that must have two values or more.

        Raises:
            NotDrawnError: a role is not bound, or no sweep trains the problem.
            MistakeError: an unknown name, or a role that stands for several.
        """
        given = (dataset, backbone, method, optimizer)
        problem = Problem(*map(self.name, NAMED, given))
        if (problem.name, clipping) not in self.study.blocks:
            raise NotDrawnError(f"no sweep trains {self._described(problem, clipping)}")
        if clipping != "flat":
            several = tuple(axis for axis in several if axis != "clipping_bound")
        blocks = self.study.blocks[problem.name, clipping]
        return Grid(self.study, problem, clipping, blocks, several)

    def each(
        self,
        problems: Mapping[Any, Mapping[str, Any]],
        epochs: Callable[[Sequence[Grid]], int] | None = usual,
    ) -> Found:
        """Return the grids of several problems by label; those that the study lacks are left out.

        Args:
            problems: the arguments of `one`, by label.
            epochs: chooses the epochs of the grids of a dataset; None leaves the choice.

        Raises:
            NotDrawnError: all are left out.
        """
        grids = self.parts(lambda label: (label, self.one(**problems[label])), problems)
        found = Found(grids)
        if epochs:
            found = Found(zip(found, by_dataset([*found.values()], epochs=epochs), strict=True))
        found.reasons = self.left_out
        return found

    def parts(self, part: Callable[[Any], T], of: Iterable[Hashable]) -> list[T]:
        """Return a part of a figure for each of several arguments; those without cells are left out.

        Raises:
            NotDrawnError: all are left out.
        """
        found, reasons = [], dict[str, None]()
        for each in of:
            try:
                found.append(part(each))
            except NotDrawnError as reason:
                reasons[str(reason)] = None
        self.left_out |= reasons
        if not found:
            raise NotDrawnError("; ".join(reasons))
        return found

    def names(self, part: str, role: str) -> list[str]:
        """Return the names that a role or a name stands for.

        Args:
            part: dataset, backbone, method or optimizer; optimizers have no roles.
            role: a role, or a name.

        Raises:
            NotDrawnError: the role is not bound.
            MistakeError: it is neither a role nor a name, or there is no such part.
        """
        study = self.study
        if part not in NAMED:
            raise MistakeError(f"each: {unknown(part, NAMED)}")
        bound = study.roles.bound(part, role) if part in PARTS else None
        section = study.every_optimizer if part == "optimizer" else getattr(study, f"{part}s")
        if bound:
            return bound
        if role in section:
            return [role]
        if bound is None:
            roles = study.roles.roles_of(part) if part in PARTS else []
            raise MistakeError(f"{part}: {unknown(role, [*roles, *section])}")
        raise NotDrawnError(f"roles.{part}s.{role} is not bound")

    def name(self, part: str, role: str) -> str:
        """Return the only name that a role or a name stands for; arguments and errors as of `names`."""
        first, *others = self.names(part, role)
        if others:
            every = ", ".join([first, *others])
            raise MistakeError(f"{part}: found {role}, which has {every}; allowed: one name")
        return first

    def _described(self, problem: Problem, clipping: str) -> str:
        study = self.study
        return (
            f"{study.backbones[problem.backbone].title} with {study.methods[problem.method].title} "
            f"on {study.datasets[problem.dataset].title}"
            + f" by {study.optimizer(problem.optimizer).full_title()}"
            * (problem.optimizer != "adam")
            + f" with clipping_bound {clipping}" * (clipping != "flat")
        )


# -- selections: what figures and tables draw ----------------------------------------------------


class Selection(Settings):
    """A set of cells: every combination of the values of its axes."""

    dataset: str
    backbone: str
    method: str
    optimizer: str = "adam"
    epsilon: Several[float]
    epochs: Several[int]
    batch_size: Several[BatchSize]
    clipping_bound: Several[ClippingBound]

    @classmethod
    def of(cls, grid: Grid, **fields: Any) -> Self:
        """Return the cells of a grid at its chosen values, and at all values of other axes.

        Raises:
            NotDrawnError: an axis has no value, or one where it must have several.
        """
        names = {key: getattr(grid.problem, key) for key in NAMED}
        return cls.model_validate({**names, **grid.filled().chosen, **fields})

    def values(self, axis: str) -> list[Any]:
        """Return the values of an axis."""
        return list(getattr(self, axis))

    @property
    def problem(self) -> Problem:
        """The problem of the cells."""
        return Problem(self.dataset, self.backbone, self.method, self.optimizer)

    def cells(self) -> list[Cell]:
        """Return the cells in grid order."""
        places = itertools.product(*(self.values(axis) for axis in CELL_AXES))
        return [Cell(self.problem.name, *place) for place in places]


class Panel(Selection):
    """One axes of a figure, drawn from one selection."""

    title: str = ""
    """by default, the settings that differ from other panels"""


class Line(Selection):
    """One line of a panel."""

    label: str = ""
    """by default, the settings that differ from other lines"""
    difficulty: Literal["easy", "medium", "hard"] | None = None
    """of the problem; selects the colour"""


class LinePanel(Settings):
    """One axes with several lines."""

    title: str = ""
    """by default, the settings that differ from other panels"""
    lines: Annotated[list[Line], Field(min_length=1)]

    @classmethod
    def of(cls, grids: Iterable[Grid], title: str = "") -> Self:
        """Return a panel with a line for each grid."""
        return cls(title=title, lines=[Line.of(each) for each in grids])
