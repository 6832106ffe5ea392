"""Building blocks of all sections: the base class, names, and lists of numbers."""

import itertools
import os
import posixpath
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PositiveInt,
    StringConstraints,
    model_validator,
)

from dpsweep.base.formatting import one_line
from dpsweep.study import messages
from dpsweep.study.cells import Full, number

Number = TypeVar("Number", int, float)
Value = TypeVar("Value", int, float, int | Full)
Values = TypeVar("Values", str, list[str])


def _writable(title: str) -> str:
    title = " ".join(title.split())
    if title != one_line(title):
        raise ValueError(f"allowed: characters that can be written, but found {title!a}")
    return title


Title = Annotated[str, AfterValidator(_writable)]
"""A name in figures, tables and pages, on one line."""

# Names become file names, so they have no special characters of paths or shells.
Name = Annotated[str, StringConstraints(pattern=messages.NAME_PATTERN, max_length=100)]
HubId = Annotated[str, StringConstraints(pattern=messages.HUB_ID_PATTERN)]
FolderName = Annotated[str, StringConstraints(pattern=messages.FOLDER_PATTERN)]
Commit = Annotated[str, StringConstraints(pattern=messages.COMMIT_PATTERN)]
LayerName = Annotated[str, StringConstraints(pattern=messages.LAYER_PATTERN, max_length=100)]
# It becomes Python code in a model card.
ArgumentName = Annotated[str, StringConstraints(pattern=messages.ARGUMENT_PATTERN, max_length=100)]
ModuleName = Annotated[str, StringConstraints(pattern=messages.MODULE_PATTERN)]


def strictly_increasing(values: list[Value]) -> list[Value]:
    """Refuse values that are not sorted or are repeated; ``full`` is the largest."""
    for smaller, larger in itertools.pairwise(values):
        if smaller == "full" or (larger != "full" and larger <= smaller):
            raise ValueError(
                "allowed: sorted from small to large, each value once, but "
                f"{number(larger)} follows {number(smaller)}"
            )
    return values


def each_once(values: Values) -> Values:
    """Refuse repeated values, each of which would be a class of its own."""
    if len(set(values)) < len(values):
        raise ValueError("allowed: each once")
    return values


def distinct_when_printed(values: list[float]) -> list[float]:
    """Refuse numbers with the same first six digits, because tables and logs print them alike."""
    for smaller, larger in itertools.pairwise(values):
        if f"{smaller:.6g}" == f"{larger:.6g}":
            raise ValueError(
                f"allowed: values that differ in six digits, but {smaller!r} and {larger!r} do not"
            )
    return values


def require_disjoint(train_key: str, train: Sequence[str], test_key: str, test: str | None) -> None:
    """Refuse data that is read twice: epsilon holds per example, and test examples must be unseen.

    Args:
        train_key: the key of the training parts, for the message.
        train: files, folders or splits of training examples.
        test_key: the key of the test part, for the message.
        test: the file, folder or split of test examples, if there is one.

    Raises:
        ValueError: a part occurs twice.
    """
    named = [(train_key, part) for part in train] + ([] if test is None else [(test_key, test)])
    seen = set()
    for key, part in named:
        if (place := posixpath.normpath(part)) in seen:
            raise ValueError(
                f"{key}: found {part}, which is in {train_key} too; allowed: each once"
            )
        seen.add(place)


def usable_path(text: str) -> str:
    """Return a path with ``~`` and environment variables replaced.

    >>> usable_path("data/digits")
    'data/digits'

    Raises:
        ValueError: the path cannot exist, or names a variable that is not set, or empty.
    """
    # An empty variable would make $SCRATCH/x the folder /x.
    for variable in re.finditer(r"\$(?:\{(\w+)\}|(\w+)|[({].*)", text):
        if not os.environ.get(variable[1] or variable[2] or ""):
            raise ValueError(
                f"allowed: environment variables that are set; {variable[0]} is not, or is empty"
            )
    path = os.path.expandvars(os.path.expanduser(text))  # noqa: PTH111 (keeps a leading ./)
    control = any(ord(character) < ord(" ") for character in path)
    if control or path.startswith("~") or max(map(len, path.encode().split(b"/"))) > _LONGEST_NAME:
        raise ValueError(
            "allowed: no control characters, ~ only for users that exist, and names of at most "
            f"{_LONGEST_NAME} bytes"
        )
    return path


def usable_folder(text: str) -> str:
    """Return a folder as `usable_path` does; refuse one that Snakemake would read as a pattern."""
    path = usable_path(text)
    if set("{}") & set(path):
        raise ValueError("allowed: a path without { and }")
    return path


_LONGEST_NAME = 255  # of a file, on Linux and macOS
LONGEST_AXIS = 1000
"""Largest number of values on an axis of a grid."""

LocalPath = Annotated[str, AfterValidator(usable_path)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Epsilon = Annotated[float, Field(gt=0, description="target epsilon; .inf trains without privacy")]
Axis = Annotated[
    list[Number],
    Field(min_length=1, max_length=LONGEST_AXIS),
    AfterValidator(strictly_increasing),
]
"""The values of an axis of a grid."""
Grid = Axis[PositiveFloat]
BatchSizes = Annotated[
    list[PositiveInt | Full],
    Field(min_length=1, max_length=LONGEST_AXIS),
    AfterValidator(strictly_increasing),
]
# Above 1e30 the arithmetic of the optimizer overflows.
LearningRate = Annotated[float, Field(gt=0, le=1e30)]
LearningRates = Annotated[Axis[LearningRate], AfterValidator(distinct_when_printed)]


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
            f"{key}: unknown key; {messages.nearest(key, allowed)}"
            for key in keys
            if key not in allowed
        ]
        if lines:
            raise ValueError("\n".join(lines))
        return content


class Section(Settings):
    """A section of the study file, or an entry of a section; it may name local data."""

    def local_files(self) -> dict[str, str]:
        """Return the local files that the section names, by key."""
        return {}

    def local_folders(self) -> dict[str, str]:
        """Return the local folders that the section names, by key."""
        return {}


class Geometric(Section):
    """``count`` values from ``first`` to ``last``, both included, in equal ratios.

    >>> Geometric(first=0.001, last=0.1, count=3, also=[0.3]).values
    [0.001, 0.01, 0.1, 0.3]
    """

    first: LearningRate
    """the smallest value"""
    last: LearningRate
    """the largest value"""
    count: Annotated[int, Field(ge=2, le=LONGEST_AXIS)]
    """how many values, both ends included"""
    also: Annotated[list[LearningRate], Field(exclude_if=lambda values: not values)] = []
    """further values, with which a grid grows and keeps its trials"""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.last <= self.first:
            raise ValueError(
                f"last: found {number(self.last)}; allowed: above first, which is {number(self.first)}"
            )
        try:
            distinct_when_printed(self.values)
        except ValueError as error:
            found = f"{self.count} and also {messages.value(self.also)}"
            raise ValueError(f"count: found {found}; {error}") from None
        return self

    @property
    def values(self) -> list[float]:
        """All values, ascending; those in equal ratios have 6 significant digits."""
        ratio = self.last / self.first
        steps = [ratio ** (index / (self.count - 1)) for index in range(self.count)]
        return sorted([*(float(f"{self.first * step:.6g}") for step in steps), *self.also])


Gpus = Annotated[int, Field(ge=1, le=64)]
"""GPUs of one machine that train one trial together."""

Engine = Literal["auto", "expanded", "bookkeeping", "vmap", "linear", "loop", "opacus"]
Precision = Literal["float32", "bfloat16"]
"""The number format of forward and backward passes."""
