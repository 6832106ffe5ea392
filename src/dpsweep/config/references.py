"""Numbers that a paper prints."""

from typing import TYPE_CHECKING, Literal

from pydantic import PositiveFloat, PositiveInt

from dpsweep.config.clipping import PrivateRule
from dpsweep.config.section import Section

if TYPE_CHECKING:
    from dpsweep.config.selections import Selection


class PaperNumber(Section):
    """A number that a paper prints, and the cells that it describes; tables show ours beside it."""

    dataset: str
    """a name of datasets"""
    backbone: str
    """a name of backbones"""
    method: str
    """a name of methods"""
    clipping_bound: PositiveFloat | PrivateRule | Literal["tuned"]
    """a C; automatic (AUTO-S); or tuned, the best of several C"""
    epsilon: PositiveFloat
    """ε of the number"""
    epochs: PositiveInt
    """E of the number"""
    value: float
    """its accuracy, from 0 to 1"""
    minimum: float | None = None
    """smallest over seeds"""
    maximum: float | None = None
    """largest over seeds"""

    def is_of(self, cells: "Selection") -> bool:
        """Return whether the number describes these cells, which must have names and values."""
        problem, bounds = cells.problem, cells.values("clipping_bound")
        return (
            (self.dataset, self.backbone, self.method)
            == (problem.dataset, problem.backbone, problem.method)
            and problem.optimizer == "adam"
            and self.clipping_bound == (bounds[0] if len(bounds) == 1 else "tuned")
            and cells.values("epsilon") == [self.epsilon]
            and cells.values("epochs") == [self.epochs]
        )
