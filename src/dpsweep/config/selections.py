"""Selections: the cells behind a part of a figure or table.

A selection has roles or names of the dataset, backbone and method, and values of the grid. A word can
stand for values of the study's own grid:

======================  =================================================================================
``epsilon``             ``loose`` and ``tight``: the largest and smallest
``epochs``              ``few`` and ``many``; ``usual``: the most common value of the dataset's cells
``clipping_bound``      ``small`` and ``large``; ``baseline``: the one nearest to 1; ``neighbours``: the
                        baseline and those next to it
``batch_size``          ``small``: the smallest that takes at most 100 steps an epoch
all but ``batch_size``  ``common``: every value that the parts of the target share; ``all`` (of epochs
                        at least two)
======================  =================================================================================

A word means the same value in all parts of a target with the same dataset: a value that all of them
have. Defaults are the main dataset, the weak backbone, the main method, DP-Adam, the usual number of
epochs, and every epsilon, clipping bound and batch size. A selection is a full product of its axes: an
axis that is left out gets only values that the grid has with every value of the other axes.

A part with ``each`` stands for several parts: one for each value of its word on that axis, or for each
name of its role.

`dpsweep.study.bound` replaces roles and words by names and lists of values.
"""

import itertools
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dpsweep.config.cells import CELL_AXES, BatchSize, Cell, Problem
from dpsweep.config.clipping import RULES, ClippingBound
from dpsweep.config.messages import nearest

PARTS = ("dataset", "backbone", "method")
"""Keys with a role or a name as value."""
NAMED = (*PARTS, "optimizer")
"""Keys of a problem; an optimizer has a name, not a role."""
AXES = ("epochs", "epsilon", "clipping_bound", "batch_size")
"""The axes of a grid, in the order in which words are resolved."""
DEFAULTS = {"dataset": "main", "backbone": "weak", "method": "main", "optimizer": "adam"}

Part = Annotated[str, Field(min_length=1)]
T = TypeVar("T")
Several = Annotated[list[T], Field(min_length=1)]
EpsilonWord = Literal["loose", "tight", "common", "all"]
EpochsWord = Literal["usual", "few", "many", "common", "all"]
ClippingWord = Literal["small", "large", "baseline", "neighbours", "common", "all"]
BatchSizeWord = Literal["small", "all"]
VALUES = ("full", *RULES)
"""Values of the grid that are not numbers."""
Axis = Literal["method", "epsilon", "epochs", "clipping_bound"]
"""Keys allowed in ``each``."""


def is_given(value: object) -> bool:
    """Return whether a setting is a value: neither a word for one, nor left out."""
    return value is not None and (not isinstance(value, str) or value in VALUES)


class Settings(BaseModel):
    """A mapping in the study file: unknown keys and loosely typed values are refused.

    The text below a key describes it in the schema.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True
    )

    @model_validator(mode="before")
    @classmethod
    def _no_unknown_keys(cls, content: Any) -> Any:
        """Refuse unknown keys before pydantic does, with the nearest of the allowed ones."""
        allowed = [field.alias or name for name, field in cls.model_fields.items()]
        keys = (
            [each for each in content if isinstance(each, str)] if isinstance(content, dict) else []
        )
        lines = [
            f"{key}: unknown key; {nearest(key, allowed)}" for key in keys if key not in allowed
        ]
        if lines:
            raise ValueError("\n".join(lines))
        return content


class Selection(Settings):
    """A set of cells; see `dpsweep.config.selections` for the meaning of words and omissions."""

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
        """Return this selection, with missing keys taken from its panel."""
        left_out = [name for name in Selection.model_fields if getattr(self, name) is None]
        return self.model_copy(update={name: getattr(panel, name) for name in left_out})

    def values(self, axis: str) -> list[Any]:
        """Return the values of an axis that has no word; none if the axis is left out."""
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
        """The problem of the selection, once roles are replaced by names."""
        dataset, backbone, method = (str(getattr(self, part)) for part in PARTS)
        return Problem(dataset, backbone, method, self.optimizer or DEFAULTS["optimizer"])

    def cells(self) -> list[Cell]:
        """Return the cells of the selection in grid order, once it has names and values."""
        problem = self.problem.name
        places = itertools.product(*(self.values(axis) for axis in CELL_AXES))
        return [Cell(problem, *place) for place in places]


class Panel(Selection):
    """One axes of a figure, drawn from one selection."""

    title: str = ""
    """by default, the settings that differ from other panels"""
    each: tuple[Axis, ...] = ()
    """keys for which every value, or every name of the role, has its own panel"""


class Line(Selection):
    """One line of a panel."""

    label: str = ""
    """by default, the settings that differ from other lines"""
    difficulty: Literal["easy", "medium", "hard"] | None = None
    """of the problem; selects the colour"""


class LinePanel(Selection):
    """One axes with several lines, which take missing keys from the panel."""

    title: str = ""
    """by default, the settings that differ from other panels"""
    lines: Annotated[list[Line], Field(min_length=1)]
