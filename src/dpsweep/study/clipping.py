"""Clipping rules: how per-example gradients are scaled before they are summed.

A grid names a rule by a number, the bound of `FlatClipping`, or by a name in `RULES`; `clipping_rule`
makes the rule. A trial's specification contains the rule, the trial's key contains the rule's fields,
and the optimizer calls it for factors.

All private rules are *normalised*: for every clipping bound, the scaled gradient of one example has a
norm of at most 1, so the noise has standard deviation ``noise_multiplier`` (Algorithm 1 of the paper;
De et al. 2022). That holds in exact arithmetic. In float32 the norm is a rounded sum and the factor a
rounded quotient, so a contribution can exceed 1 by a few units in the last place (relative 1e-6). To
cover it, the noise multiplier would have to be larger by the same 1e-6.

This module does not import torch, because reading a study file must not need it.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from dpsweep.base.errors import real

if TYPE_CHECKING:
    from torch import Tensor

SMALLEST_BOUND = 1e-12
"""The smallest clipping bound; below it, squares of relevant gradients would underflow in float32."""

PrivateRule = Literal["automatic"]
"""Names of rules that bound the influence of an example and have no bound to tune."""
RuleName = PrivateRule | Literal["none"]
ClippingBound = float | RuleName
"""A value of the grid: C, or the name of a rule."""


class Clipping(ABC):
    """A rule that maps per-example gradient norms to factors. Its fields are in a trial's key."""

    title: ClassVar[str]
    """in figures and tables"""
    sensitivity: ClassVar[float] = 1.0
    """largest possible norm of a scaled gradient; infinite if the rule bounds nothing"""
    kind: str
    """its name in records: flat, or as in `RULES`"""

    @abstractmethod
    def factors(self, norms: "Tensor") -> "Tensor":
        """Return the factor of each gradient; shape and dtype are those of ``norms``."""

    def clipped(self, norms: "Tensor") -> "Tensor":
        """Mark the gradients that are longer than the clipping bound (bool); none without a bound."""
        return norms > math.inf


@dataclass(frozen=True)
class FlatClipping(Clipping):
    """The factor ``min(1/C, 1/norm)`` for a clipping bound C, exact also for zero norms.

    >>> from torch import tensor
    >>> FlatClipping(2.0).factors(tensor([0.0, 1.0, 4.0]))
    tensor([0.5000, 0.5000, 0.2500])

    Opacus and others divide by ``norm + 1e-6`` instead, which at the paper's C = 1e-5 shortens
    gradients by up to 9 %.
    """

    title: ClassVar[str] = "Flat clipping"
    bound: float
    kind: Literal["flat"] = field(default="flat", init=False)

    def __post_init__(self) -> None:
        real("clipping bound", self.bound, least=SMALLEST_BOUND)

    def factors(self, norms: "Tensor") -> "Tensor":
        """Return ``min(1/C, 1/norm)``."""
        return norms.reciprocal().clamp(max=1 / self.bound)

    def clipped(self, norms: "Tensor") -> "Tensor":
        """Return ``norm > C``."""
        return norms > self.bound


@dataclass(frozen=True)
class AutomaticClipping(Clipping):
    """AUTO-S: the factor ``1 / (norm + gamma)`` (Bu et al. 2023, "Automatic Clipping").

    >>> from torch import tensor
    >>> AutomaticClipping(gamma=0.5).factors(tensor([0.0, 1.5]))
    tensor([2.0000, 0.5000])
    """

    title: ClassVar[str] = "AUTO-S"
    gamma: float = 0.01
    kind: Literal["automatic"] = field(default="automatic", init=False)

    def __post_init__(self) -> None:
        real("AUTO-S gamma", self.gamma, least=SMALLEST_BOUND)

    def factors(self, norms: "Tensor") -> "Tensor":
        """Return ``1 / (norm + gamma)``."""
        return (norms + self.gamma).reciprocal()


@dataclass(frozen=True)
class NoClipping(Clipping):
    """The factor 1, for training without privacy."""

    title: ClassVar[str] = "No clipping"
    sensitivity: ClassVar[float] = math.inf
    kind: Literal["none"] = field(default="none", init=False)

    def factors(self, norms: "Tensor") -> "Tensor":
        """Return 1 everywhere."""
        return norms.new_ones(norms.shape)


RULES: dict[str, type[Clipping]] = {"automatic": AutomaticClipping, "none": NoClipping}
"""The rules that a grid refers to by name."""


def clipping_kind(value: object) -> str:
    """Return the kind of rule of a grid's value; flat for numbers and the words that stand for them."""
    return value if isinstance(value, str) and value in RULES else "flat"


def nearest_to_one(bounds: Iterable[ClippingBound]) -> float:
    """Return the clipping bound nearest to 1, the smaller of two; ignore names of rules.

    >>> nearest_to_one([0.1, 0.5, 2.0, "automatic"])
    0.5
    """
    numbers = [bound for bound in bounds if not isinstance(bound, str)]
    return min(numbers, key=lambda bound: (abs(math.log(bound)), bound))


def clipping_rule(value: ClippingBound, gamma: float) -> Clipping:
    """Return the rule of a grid's value.

    >>> clipping_rule(1, gamma=0.01)
    FlatClipping(bound=1.0, kind='flat')
    >>> clipping_rule("automatic", gamma=0.01)
    AutomaticClipping(gamma=0.01, kind='automatic')

    Args:
        value: C, or the name of a rule.
        gamma: parameter of AUTO-S.

    Raises:
        ValueError: C or gamma is out of range.
    """
    match value:
        case "automatic":
            return AutomaticClipping(gamma)
        case "none":
            return NoClipping()
    return FlatClipping(float(value))
