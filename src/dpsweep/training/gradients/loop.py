"""The slow engine that every other one is tested against."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dpsweep.training.clipping import Clipping
from dpsweep.training.gradients.checks import check_model
from dpsweep.training.gradients.interface import (
    GradientSum,
    UnsupportedModelError,
    example_losses,
    sum_dtype,
)


class LoopEngine:
    """One forward and backward pass for each example, by plain autograd: the oracle."""

    def __init__(self, model: nn.Module, head_parameters: frozenset[str]):
        """Prepare a model.

        Raises:
            UnsupportedModelError: if the model mixes examples or ties trainable weights.
        """
        self.model = model
        self.parameters: Mapping[str, nn.Parameter] = check_model(model, head_parameters)
        self._head = head_parameters

    def clipped_sum(
        self, inputs: Tensor, labels: Tensor, mask: Tensor, clipping: Clipping
    ) -> GradientSum:
        """See ``GradientEngine``."""
        losses, gradients = self._per_example(inputs, labels)
        norms = _norms(gradients)
        usable = mask & norms.isfinite()
        factors = clipping.factors(norms) * usable
        sums = {
            name: torch.where(_rows(usable, rows), rows * _rows(factors, rows), 0).sum(0)
            for name, rows in gradients.items()
        }
        return GradientSum(
            gradients=sums,
            norms=torch.where(usable, norms, 0),
            losses=torch.where(mask, losses, 0),
            nonfinite=mask & ~norms.isfinite(),
        )

    def norms(self, inputs: Tensor, labels: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """See ``GradientEngine``."""
        _, gradients = self._per_example(inputs, labels)
        head = {name: rows for name, rows in gradients.items() if name in self._head}
        return torch.where(mask, _norms(gradients), 0), torch.where(mask, _norms(head), 0)

    def _per_example(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        parameters = list(self.parameters.values())
        losses, rows = [], []
        for example in range(len(inputs)):
            one = slice(example, example + 1)
            loss = example_losses(self.model(inputs[one]), labels[one]).sum()
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
            for name, gradient in zip(self.parameters, gradients, strict=True):
                if gradient is None:
                    raise UnsupportedModelError(
                        f"trainable parameter {name!r} is not used in the forward pass: freeze it"
                    )
            losses.append(loss.detach())
            rows.append(gradients)
        columns = {
            name: torch.stack(column).to(sum_dtype(column[0]))
            for name, column in zip(self.parameters, zip(*rows, strict=True), strict=True)
        }
        return torch.stack(losses), columns


def _norms(gradients: Mapping[str, Tensor]) -> Tensor:
    flat = [rows.flatten(start_dim=1) for rows in gradients.values()]
    norms: Tensor = torch.linalg.vector_norm(torch.cat(flat, dim=1), dim=1)
    return norms


def _rows(per_example: Tensor, like: Tensor) -> Tensor:
    return per_example.view(-1, *[1] * (like.dim() - 1))
