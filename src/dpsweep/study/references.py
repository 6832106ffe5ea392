"""Numbers that a paper prints."""

from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from dpsweep.study.clipping import PrivateRule
from dpsweep.study.section import Section


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
