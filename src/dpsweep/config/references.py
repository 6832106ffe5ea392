"""Numbers that a paper prints."""

from typing import TYPE_CHECKING, Literal

from pydantic import PositiveFloat, PositiveInt

from dpsweep.config.clipping import PrivateRule
from dpsweep.config.section import Section

if TYPE_CHECKING:
    from dpsweep.config.selections import Selection


class PaperNumber(Section):
    """A number that a paper prints, beside which ours is shown, and the cells that it is about."""

    dataset: str
    backbone: str
    method: str
    clipping_bound: PositiveFloat | PrivateRule | Literal["tuned"]
    """one C, AUTO-S, or the best of several C"""
    epsilon: PositiveFloat
    epochs: PositiveInt
    value: float
    minimum: float | None = None
    maximum: float | None = None

    def is_of(self, cells: "Selection") -> bool:
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
