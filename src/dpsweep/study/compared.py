"""Entries of comparison tables, and the numbers that a paper prints for them."""

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, PrivateAttr

from dpsweep.study.clipping import PrivateRule
from dpsweep.study.selections import Foreach, Selection, Settings


class PaperNumber(Settings):
    """A number that a paper prints, beside which ours is shown, and the cells that it is about."""

    dataset: str
    backbone: str
    method: str
    clipping_bound: Annotated[
        PositiveFloat | PrivateRule | Literal["tuned"],
        Field(description="one C, AUTO-S, or the best of several C"),
    ]
    epsilon: PositiveFloat
    epochs: PositiveInt
    value: float
    minimum: float | None = None
    maximum: float | None = None

    def is_of(self, cells: Selection) -> bool:
        """Whether the number is about these cells, which have names and values."""
        problem, bounds = cells.problem, cells.values("clipping_bound")
        return (
            (self.dataset, self.backbone, self.method)
            == (problem.dataset, problem.backbone, problem.method)
            and problem.optimizer == "adam"
            and self.clipping_bound == (bounds[0] if len(bounds) == 1 else "tuned")
            and cells.values("epsilon") == [self.epsilon]
            and cells.values("epochs") == [self.epochs]
        )


class ComparedCells(Selection):
    """Entries of a comparison table."""

    foreach: Foreach | None = None

    _row: list[str] = PrivateAttr(default_factory=list)
    _column: str = PrivateAttr(default="")
    _reference: PaperNumber | None = PrivateAttr(default=None)

    @property
    def row(self) -> list[str]:
        """Labels of the entry's row."""
        return self._row

    @property
    def column(self) -> str:
        """Label of the entry's column."""
        return self._column

    @property
    def reference(self) -> PaperNumber | None:
        """The paper's number for these cells, if there is one."""
        return self._reference

    def placed(self, row: Sequence[str], column: str, reference: PaperNumber | None) -> Self:
        """The entry at its place in the table."""
        entry = self.model_copy()
        entry._row, entry._column, entry._reference = list(row), column, reference
        return entry
