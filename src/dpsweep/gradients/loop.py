"""The engine that computes one example after the other; the reference for all others."""

from collections.abc import Iterable, Iterator
from typing import ClassVar

import torch
from torch import Tensor

from dpsweep.config.clipping import Clipping
from dpsweep.gradients.engine import GradientEngine, GradientSum, example_losses
from dpsweep.gradients.precision import full_precision, sum_dtype


class LoopEngine(GradientEngine):
    """An engine that runs one forward and backward pass for each example, with plain autograd."""

    by_example: ClassVar[bool] = True

    @full_precision()
    def clipped_sum(
        self, inputs: Tensor, labels: Tensor, mask: Tensor, clipping: Clipping
    ) -> GradientSum:
        """See ``GradientEngine``."""
        sums = {
            name: torch.zeros_like(each, dtype=sum_dtype(each))
            for name, each in self.parameters.items()
        }
        norms, losses = [], []
        for example, (loss, gradients) in enumerate(self._per_example(inputs, labels)):
            norm = _norm(gradients.values())
            usable = mask[example] & norm.isfinite()
            factor = clipping.factors(norm)
            for name, gradient in gradients.items():
                sums[name] += torch.where(usable, factor * gradient, 0)
            norms.append(norm)
            losses.append(loss)
        found = torch.stack(norms)
        return GradientSum(
            gradients=sums,
            norms=torch.where(mask & found.isfinite(), found, 0),
            losses=torch.where(mask, torch.stack(losses), 0),
            nonfinite=mask & ~found.isfinite(),
        )

    @full_precision()
    def norms(self, inputs: Tensor, labels: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """See ``GradientEngine``."""
        found = []
        for loss, gradients in self._per_example(inputs, labels):
            head = [each for name, each in gradients.items() if name in self._head]
            found.append((_norm(gradients.values()), _norm(head or [torch.zeros_like(loss)])))
        norms, head_norms = (torch.stack(each) for each in zip(*found, strict=True))
        return torch.where(mask, norms, 0), torch.where(mask, head_norms, 0)

    def _per_example(
        self, inputs: Tensor, labels: Tensor
    ) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        """Yield the loss and the gradients of each example."""
        for x, y in zip(torch.split(inputs, 1), torch.split(labels, 1), strict=True):
            with torch.enable_grad():
                loss = example_losses(self.model, x, y, self._autocast).sum()
            parameters = list(self.parameters.values())
            found = (
                torch.autograd.grad(loss, parameters, allow_unused=True)
                if loss.requires_grad
                else [None] * len(parameters)
            )
            gradients = {
                # The gradient of an embedding may be sparse. There is none for what an example skips.
                name: torch.zeros_like(each, dtype=sum_dtype(each))
                if gradient is None
                else gradient.to_dense().to(sum_dtype(gradient))
                for (name, each), gradient in zip(self.parameters.items(), found, strict=True)
            }
            yield loss.detach(), gradients


def _norm(gradients: Iterable[Tensor]) -> Tensor:
    # torch's norm of a long float32 vector is off by up to 1e-3; its sum adds pairwise.
    return torch.stack([each.square().sum() for each in gradients]).sum().sqrt()
