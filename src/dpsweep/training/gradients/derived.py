"""Per-example gradients of parameters from which the model computes a weight before it uses it."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from dpsweep.training.gradients.convolutions import Convolutions
from dpsweep.training.gradients.per_example import OuterProducts, column, slices, widened


@dataclass(frozen=True)
class Derived:
    """Gradients of parameters from which the model computes a weight, such as a standardised one.

    A gradient goes through that computation. The sum goes as one, after it was taken; for their
    norms all examples have to, a few at a time, so that memory stays small.

    Attributes:
        weight: the computed weight, in its graph.
        sources: the parameters.
        gradients: of the weight.
    """

    weight: Tensor
    sources: Mapping[str, Tensor]
    gradients: OuterProducts | Convolutions

    @property
    def names(self) -> tuple[str, ...]:
        """See ``PerExampleGradients``."""
        return tuple(self.sources)

    def squared_norms(self) -> Tensor:
        """See ``PerExampleGradients``."""
        parts = []
        for some in slices(len(self.gradients.inputs), self.weight):
            rows = self.gradients.rows(some).to(self.weight.dtype)
            gradients = self._through(rows, is_grads_batched=True)
            squares = [widened(each).flatten(1).square().sum(1) for each in gradients]
            parts.append(torch.stack(squares).sum(0))
        return torch.cat(parts)

    def weighted_sums(self, factors: Tensor, usable: Tensor) -> dict[str, Tensor]:
        """See ``PerExampleGradients``."""
        (total,) = self.gradients.weighted_sums(factors, usable).values()
        gradients = self._through(total.to(self.weight.dtype), is_grads_batched=False)
        # Where nothing is usable, the computation itself may not be finite.
        return {
            name: torch.where(usable.any(), widened(each), 0)
            for name, each in zip(self.sources, gradients, strict=True)
        }

    def instantiated(self) -> dict[str, Tensor]:
        """See ``PerExampleGradients``."""
        rows = self.gradients.rows().to(self.weight.dtype)
        through = self._through(rows, is_grads_batched=True)
        return {name: widened(each) for name, each in zip(self.sources, through, strict=True)}

    def _through(self, gradient: Tensor, *, is_grads_batched: bool) -> tuple[Tensor, ...]:
        return torch.autograd.grad(
            self.weight,
            list(self.sources.values()),
            gradient,
            retain_graph=True,
            is_grads_batched=is_grads_batched,
        )


@dataclass(frozen=True)
class Standardized(Derived):
    """Gradients of a convolution's standardised weights: their norms in closed form.

    With weights w of K inputs, standardised x = (w - mean(w)) r, and y = gain / sqrt(K) x, a
    gradient g by y becomes, for each output channel::

        dw = gain / sqrt(K) r (g - mean(g) - x mean(g x)),    dgain = sum(g x) / sqrt(K)

    So the squared norms need three sums a channel and example: of g^2, g and g x.

    Attributes:
        raw: the weights before, shape (out, in, height, width).
        gain: shape (out,).
        epsilon: what was added to their variance.
    """

    gradients: Convolutions
    raw: Tensor
    gain: Tensor
    epsilon: float

    def squared_norms(self) -> Tensor:
        """See ``PerExampleGradients``."""
        raw = widened(self.raw.detach())
        inputs = raw[0].numel()
        variance, mean = torch.var_mean(raw.flatten(1), dim=1, correction=0)
        rate = (variance + self.epsilon).rsqrt()
        standardized = (raw - column(mean, raw)) * column(rate, raw)
        probes = torch.stack([torch.ones_like(raw), standardized], dim=1)
        squares, dots = self.gradients.channel_sums(probes)
        total, along = dots.unbind(1)
        # Of x itself the sum of squares is a little less than K, by the epsilon.
        overlap = 2 - variance / (variance + self.epsilon)
        scale = (widened(self.gain.detach()) * rate).square() / inputs
        exact = squares - total.square() / inputs - overlap * along.square() / inputs
        # Differences of large numbers: never less than their rounding error.
        weights = scale * exact.maximum(32 * torch.finfo(raw.dtype).eps * squares)
        return (weights + along.square() / inputs).sum(1)
