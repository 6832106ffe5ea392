"""What all sections of a study are built of: the base class, names, and lists of numbers."""

import itertools
import posixpath
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from dpsweep.study.cells import number
from dpsweep.study.messages import (
    COMMIT_PATTERN,
    FOLDER_PATTERN,
    HUB_ID_PATTERN,
    LAYER_PATTERN,
    MODULE_PATTERN,
    NAME_PATTERN,
)

# Names become file names, so they hold nothing that a path or a shell could read differently.
Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN, max_length=100)]
HubId = Annotated[str, StringConstraints(pattern=HUB_ID_PATTERN)]
FolderName = Annotated[str, StringConstraints(pattern=FOLDER_PATTERN)]
Commit = Annotated[str, StringConstraints(pattern=COMMIT_PATTERN)]
LayerName = Annotated[str, StringConstraints(pattern=LAYER_PATTERN, max_length=100)]
ModuleName = Annotated[str, StringConstraints(pattern=MODULE_PATTERN)]


def strictly_increasing(values: list[float]) -> list[float]:
    """Refuse numbers that are not sorted, or that are repeated."""
    for smaller, larger in itertools.pairwise(values):
        if larger == smaller:
            raise ValueError(f"allowed: every value once, but {number(larger)} appears twice")
        if larger < smaller:
            raise ValueError(
                "allowed: sorted from small to large, but "
                f"{number(larger)} follows {number(smaller)}"
            )
    return values


def strictly_increasing_integers(values: list[int]) -> list[int]:
    """`strictly_increasing` for integers, which keep their type."""
    strictly_increasing([float(value) for value in values])
    return values


def require_disjoint(train_key: str, train: Sequence[str], test_key: str, test: str | None) -> None:
    """Refuse what is read twice: epsilon holds per example, and a test must be of unseen ones.

    Args:
        train_key: the key of the training parts, for the message.
        train: files, folders or splits of training examples.
        test_key: the key of the test part, for the message.
        test: the file, folder or split of test examples, if there is one.

    Raises:
        ValueError: a part is there twice.
    """
    parts = [posixpath.normpath(part) for part in train]
    repeated = sorted({part for part in parts if parts.count(part) > 1})
    if repeated:
        raise ValueError(f"{train_key}: found {', '.join(repeated)} twice; allowed: each once")
    if test is not None and posixpath.normpath(test) in parts:
        raise ValueError(
            f"{test_key}: found {test}, which is in {train_key} too; allowed: one that is not"
        )


PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Epsilon = Annotated[float, Field(gt=0, description="target epsilon; .inf trains without privacy")]
Grid = Annotated[list[PositiveFloat], Field(min_length=1), AfterValidator(strictly_increasing)]
# Above 1e30 the arithmetic of the optimizer itself overflows.
LearningRate = Annotated[float, Field(gt=0, le=1e30)]
LearningRates = Annotated[
    list[LearningRate], Field(min_length=1), AfterValidator(strictly_increasing)
]


class Section(BaseModel):
    """A mapping in the study file: unknown keys and loosely typed values are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    def local_files(self) -> dict[str, str]:
        """The local files that the section names, by key."""
        return {}

    def local_folders(self) -> dict[str, str]:
        """The local folders that the section names, by key."""
        return {}


Engine = Literal["auto", "expanded", "bookkeeping", "vmap", "linear", "loop", "opacus"]
