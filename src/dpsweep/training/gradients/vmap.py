"""The engine for what the others do not know: torch's vectorised per-example gradients."""

from collections.abc import Iterator, Mapping
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from dpsweep.study.clipping import Clipping
from dpsweep.training.gradients.factored import FactoredEngine
from dpsweep.training.gradients.interface import GradientSum
from dpsweep.training.gradients.per_example import PerExampleGradients, slices

# How many numbers the gradients of a chunk may have: 256 MB on the CPU, elsewhere 2 GB.
_AT_ONCE = 2**26, 2**29


class VmapEngine(FactoredEngine):
    """``torch.func.vmap`` of the gradient of one example: every example is a batch of its own.

    Knows whatever vmap knows, but instantiates every gradient, so that it is slower and needs more
    memory. Micro-batches are cut into chunks whose gradients are as large as memory is good for.
    """

    def clipped_sum(
        self, inputs: Tensor, labels: Tensor, mask: Tensor, clipping: Clipping
    ) -> GradientSum:
        """See ``GradientEngine``."""
        parts = []
        total: dict[str, Tensor] = {}
        for some in self._chunks(inputs):
            part = super().clipped_sum(inputs[some], labels[some], mask[some], clipping)
            if total:
                torch._foreach_add_(list(total.values()), [part.gradients[name] for name in total])
                part.gradients.clear()
            else:
                total = dict(part.gradients)
            parts.append(part)
        return GradientSum(
            gradients=total,
            norms=torch.cat([part.norms for part in parts]),
            losses=torch.cat([part.losses for part in parts]),
            nonfinite=torch.cat([part.nonfinite for part in parts]),
        )

    def norms(self, inputs: Tensor, labels: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """See ``GradientEngine``."""
        parts = [
            super(VmapEngine, self).norms(inputs[some], labels[some], mask[some])
            for some in self._chunks(inputs)
        ]
        norms, head_norms = (torch.cat(each) for each in zip(*parts, strict=True))
        return norms, head_norms

    def _per_example(
        self, inputs: Tensor, labels: Tensor
    ) -> tuple[Tensor, list[PerExampleGradients]]:
        def loss(parameters: Mapping[str, Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            value = self._losses(parameters, x[None], y[None]).sum()
            return value, value

        gradient = torch.func.vmap(torch.func.grad(loss, has_aux=True), in_dims=(None, 0, 0))
        shared = {name: each.detach() for name, each in self.parameters.items()}
        # The CPU's kernel for attention has no vectorised form, and the plain one no autocast.
        plain = inputs.device.type == "cpu" and self._autocast is None
        with sdpa_kernel(SDPBackend.MATH) if plain else nullcontext():
            gradients, losses = gradient(shared, inputs, labels)
        return losses, self._grouped(gradients)

    def _chunks(self, inputs: Tensor) -> Iterator[slice]:
        size = sum(each.numel() for each in self.parameters.values())
        return slices(len(inputs), size, inputs.device, _AT_ONCE)
