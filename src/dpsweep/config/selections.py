"""Selections: which cells a part of a figure or table is drawn from.

A selection says what the cells are: roles or names of the dataset, backbone and method, and values of
the grid. For a value there may be a word, which stands for what the study's own grid has there:

======================  =================================================================================
``epsilon``             ``loose`` and ``tight``: the largest and smallest
``epochs``              ``few`` and ``many``; ``usual``: what most cells of the dataset are trained for
``clipping_bound``      ``small`` and ``large``; ``baseline``: the one nearest to 1; ``neighbours``: the
                        baseline and those next to it
``batch_size``          ``small``: the smallest that takes at most 100 steps an epoch
all but ``batch_size``  ``common``: every value that the parts of the target share; ``all`` (of epochs
                        at least two)
======================  =================================================================================

A word means the same value in all parts of a target that are about one dataset: a value that all
of them have. What is left out is the main dataset, the weak backbone, the main method, DP-Adam, the
usual number of epochs, and every epsilon, clipping bound and batch size. A selection is a full
product of its axes: an axis that is left out gets only values that the grid has with every value of
the other axes.

A part with ``each`` stands for several: one for each value that its word has on that axis, or for each
name that its role has.

`dpsweep.study.bound` puts names and lists of values in place of roles and words.
"""

import itertools
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from dpsweep.config.cells import CELL_AXES, BatchSize, Cell, Problem
from dpsweep.config.clipping import RULES, ClippingBound

PARTS = ("dataset", "backbone", "method")
"""Keys whose value is a role or a name."""
NAMED = (*PARTS, "optimizer")
"""Keys of a problem; an optimizer has a name only."""
AXES = ("epochs", "epsilon", "clipping_bound", "batch_size")
"""The axes of a grid, in the order in which words are given values."""
DEFAULTS = {"dataset": "main", "backbone": "weak", "method": "main", "optimizer": "adam"}

Part = Annotated[str, Field(min_length=1)]
T = TypeVar("T")
Several = Annotated[list[T], Field(min_length=1)]
EpsilonWord = Literal["loose", "tight", "common", "all"]
EpochsWord = Literal["usual", "few", "many", "common", "all"]
ClippingWord = Literal["small", "large", "baseline", "neighbours", "common", "all"]
BatchSizeWord = Literal["small", "all"]
VALUES = ("full", *RULES)
"""Values of the grid that are no numbers."""
Axis = Literal["method", "epsilon", "epochs", "clipping_bound"]
"""Keys that may have several values or names, each of which has a part of its own."""


def is_given(value: object) -> bool:
    """Whether the file says a value itself, not a word for it or nothing."""
    return value is not None and (not isinstance(value, str) or value in VALUES)


class Settings(BaseModel):
    """A mapping in the study file: unknown keys and loosely typed values are refused.

    The text below a key describes it in the schema.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True
    )


class Selection(Settings):
    """Cells by what they are; see `dpsweep.config.selections` for what words and omissions mean."""

    dataset: Part | None = None
    """a role or a name; main if left out"""
    backbone: Part | None = None
    """a role or a name; weak if left out"""
    method: Part | None = None
    """a role or a name; main if left out"""
    optimizer: Part | None = None
    """a name; adam if left out"""
    epsilon: EpsilonWord | float | Several[float] | None = None
    epochs: EpochsWord | int | Several[int] | None = None
    batch_size: BatchSizeWord | BatchSize | Several[BatchSize] | None = None
    clipping_bound: ClippingWord | ClippingBound | Several[ClippingBound] | None = None
    """automatic is AUTO-S; if left out, every C"""

    def within(self, panel: "Selection") -> Self:
        """This selection with what it leaves out taken from its panel."""
        left_out = [name for name in Selection.model_fields if getattr(self, name) is None]
        return self.model_copy(update={name: getattr(panel, name) for name in left_out})

    def values(self, axis: str) -> list[Any]:
        """The values of an axis, where it has no word; none where it is left out."""
        chosen = getattr(self, axis)
        if chosen is None:
            return []
        return list(chosen) if isinstance(chosen, list) else [chosen]

    @property
    def is_complete(self) -> bool:
        """Whether all its axes have values."""
        return all(is_given(getattr(self, axis)) for axis in AXES)

    @property
    def problem(self) -> Problem:
        """Problem of the selection, once names stand for roles."""
        dataset, backbone, method = (str(getattr(self, part)) for part in PARTS)
        return Problem(dataset, backbone, method, self.optimizer or DEFAULTS["optimizer"])

    def cells(self) -> list[Cell]:
        """The cells of the selection in grid order, once it has names and values."""
        problem = self.problem.name
        places = itertools.product(*(self.values(axis) for axis in CELL_AXES))
        return [Cell(problem, *place) for place in places]


class Panel(Selection):
    """One axes of a figure, drawn from one selection."""

    title: str = ""
    """by default, what tells the panel from others"""
    each: tuple[Axis, ...] = ()
    """keys of which every value, or every name of the role, has a panel of its own"""


class Line(Selection):
    """One line of a panel."""

    label: str = ""
    """by default, what tells the line from others"""
    difficulty: Literal["easy", "medium", "hard"] | None = None
    """of the problem: the colour"""


class LinePanel(Selection):
    """One axes with several lines, which leave out what the panel says."""

    title: str = ""
    """by default, what tells the panel from others"""
    lines: Annotated[list[Line], Field(min_length=1)]
