"""Per-example gradients of parameters from which the model computes a weight."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from dpsweep.gradients.convolutions import ChannelSums, Convolutions, sums_of_rows
from dpsweep.gradients.per_example import (
    ERROR,
    Instantiated,
    PerExampleGradients,
    WeightGradients,
    slices,
    widened,
)
from dpsweep.gradients.units import Units

# Its arguments: input, four other tensors, training, momentum and epsilon.
_BATCH_NORM = signature(F.batch_norm)


@dataclass(frozen=True)
class Derived(PerExampleGradients):
    """Gradients of parameters from which the model computes a weight, such as a standardised one.

    Gradients of the weight go back through that computation: for the sum, only the summed gradient.
    For the norms, the gradient of each example does, a few at a time to limit memory.

    Attributes:
        weight: the computed weight, with its graph.
        sources: the parameters.
        gradients: of the weight.
        examples: how many.
    """

    weight: Tensor
    sources: Mapping[str, Tensor]
    gradients: WeightGradients | Instantiated
    examples: int

    @property
    def names(self) -> tuple[str, ...]:
        """See ``PerExampleGradients``."""
        return tuple(self.sources)

    def squared_norms(self) -> Tensor:
        """See ``PerExampleGradients``."""
        parts = []
        for some in slices(self.examples, self.weight.numel(), self.weight.device):
            rows = self.gradients.rows(some)
            gradients = through(self.weight, self.sources, rows, is_grads_batched=True)
            squares = [each.flatten(1).square().sum(1) for each in gradients.values()]
            parts.append(torch.stack(squares).sum(0))
        return torch.cat(parts)

    def weighted_sums(self, factors: Tensor, usable: Tensor) -> dict[str, Tensor]:
        """See ``PerExampleGradients``."""
        (total,) = self.gradients.weighted_sums(factors, usable).values()
        gradients = through(self.weight, self.sources, total, is_grads_batched=False)
        # If no example is usable, the computation itself may not be finite.
        return {name: torch.where(usable.any(), each, 0) for name, each in gradients.items()}

    def instantiated(self) -> dict[str, Tensor]:
        """See ``PerExampleGradients``."""
        rows = self.gradients.rows()
        return through(self.weight, self.sources, rows, is_grads_batched=True)

    def by_unit(self, units: Units) -> Sequence[PerExampleGradients]:
        """See ``PerExampleGradients``."""
        (gradients,) = self.gradients.by_unit(units)
        return [replace(self, gradients=gradients, examples=units.count)]


def through(
    weight: Tensor, sources: Mapping[str, Tensor], gradient: Tensor, *, is_grads_batched: bool
) -> dict[str, Tensor]:
    """Return the gradients of the parameters from which a weight was computed, in the dtype of sums.

    Args:
        weight: the computed weight, with its graph.
        sources: the parameters.
        gradient: of the weight; with ``is_grads_batched`` one for each example.
        is_grads_batched: see ``torch.autograd.grad``.
    """
    found = torch.autograd.grad(
        weight,
        list(sources.values()),
        gradient.to(weight.dtype),
        retain_graph=True,
        is_grads_batched=is_grads_batched,
    )
    return {name: widened(each) for name, each in zip(sources, found, strict=True)}


class Standardization(NamedTuple):
    """The inputs of a standardisation of weights per output channel."""

    raw: Tensor
    """the weights before standardisation, shape (out, ...)"""
    gain: Tensor | None
    """norms of the standardised channels, trainable, shape (out,); None: variance 1"""
    epsilon: float
    """added to the variance"""

    @classmethod
    def by_batch_norm(cls, *args: Any, **kwargs: Any) -> Self | None:
        """Return the standardisation that ``F.batch_norm`` does to weights (1, out, inputs), else None."""
        given = _BATCH_NORM.bind(*args, **kwargs)
        given.apply_defaults()
        weights, *others, training, _, epsilon = given.arguments.values()
        alone = weights.dim() == 3 and len(weights) == 1 and all(each is None for each in others)
        return cls(weights[0], None, epsilon) if alone and training else None


@dataclass(frozen=True)
class Standardized(Derived):
    """Gradients of a convolution's standardised weights, with norms in closed form.

    With weights w of K inputs, standardised x = (w - mean(w)) r, and y = gain / sqrt(K) x, a
    gradient g by y becomes, for each output channel::

        dw = gain / sqrt(K) r (g - mean(g) - x mean(g x)),    dgain = sum(g x) / sqrt(K)

    So the squared norms need three sums for each channel and example: of g^2, g and g x. The outputs of
    the layer give the last one. The mean of g has no influence, but is nearly all of g where inputs are
    nearly uniform. So it is subtracted before the sums; rows are stored without it.
    """

    origin: Standardization

    def squared_norms(self) -> Tensor:
        """See ``PerExampleGradients``."""
        raw = widened(self.origin.raw.detach())
        gain = None if self.origin.gain is None else widened(self.origin.gain.detach())
        inputs = raw[0].numel()
        centred = raw.flatten(1) - raw.flatten(1).mean(1, keepdim=True)
        variance = centred.square().mean(1)
        rate = (variance + self.origin.epsilon).rsqrt()
        # slope is y / x for each channel; without a gain, y is x.
        slope = torch.ones_like(rate) if gain is None else gain / math.sqrt(inputs)
        standardized = (centred * rate[:, None]).view_as(self.weight)
        gradients = self._without_level()
        squares, total, along, rounding = (
            gradients.channel_sums(standardized, slope)
            if isinstance(gradients, Convolutions)
            else _sums_of_rows(gradients, standardized, self.examples)
        )
        # The sum of squares of x is a little less than K, because of epsilon.
        overlap = 2 - variance / (variance + self.origin.epsilon)
        exact = squares - total.square() / inputs - overlap * along.square() / inputs
        # Differences of large numbers: at least their rounding error.
        weights = (slope * rate).square() * exact.maximum(
            ERROR * torch.finfo(raw.dtype).eps * rounding
        )
        return (weights if gain is None else weights + along.square() / inputs).sum(1)

    def weighted_sums(self, factors: Tensor, usable: Tensor) -> dict[str, Tensor]:
        """See ``PerExampleGradients``."""
        level = replace(self, gradients=self._without_level())
        return Derived.weighted_sums(level, factors, usable)

    def by_unit(self, units: Units) -> Sequence[PerExampleGradients]:
        """See ``PerExampleGradients``."""
        (gradients,) = self._without_level().by_unit(units)
        return [replace(self, gradients=gradients, examples=units.count)]

    def _without_level(self) -> WeightGradients | Instantiated:
        if isinstance(self.gradients, Convolutions):
            return self.gradients.without_level()
        return self.gradients


def _sums_of_rows(
    gradients: WeightGradients | Instantiated, weights: Tensor, examples: int
) -> ChannelSums:
    """Return `sums_of_rows` of all examples, a few at a time to limit memory."""
    parts = [
        sums_of_rows(rows := gradients.rows(some), weights.to(rows.dtype))
        for some in slices(examples, weights.numel(), weights.device)
    ]
    return ChannelSums(*(torch.cat(each) for each in zip(*parts, strict=True)))
