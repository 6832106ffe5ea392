"""The engine that computes one example after the other; the reference for all others."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from dpsweep.gradients.engine import GradientEngine, GradientSum, example_losses, gradients_of
from dpsweep.gradients.precision import full_precision, sum_dtype
from dpsweep.gradients.units import Units
from dpsweep.study.clipping import Clipping


class LoopEngine(GradientEngine):
    """An engine that runs one forward and backward pass for each example, with plain autograd."""

    by_example: ClassVar[bool] = True

    @full_precision()
    def clipped_sum(
        self, inputs: Tensor, labels: Tensor, mask: Tensor, clipping: Clipping, units: Any = None
    ) -> GradientSum:
        """See ``GradientEngine``."""
        sums = {
            name: torch.zeros_like(each, dtype=sum_dtype(each))
            for name, each in self.parameters.items()
        }
        units = _units(units, mask)
        norms, losses = [], []
        for (loss, gradients), counted in zip(
            self._per_unit(inputs, labels, units), units.counted, strict=True
        ):
            norm = _norm(gradients.values())
            usable = counted & norm.isfinite()
            factor = clipping.factors(norm)
            for name, gradient in gradients.items():
                sums[name] += torch.where(usable, factor * gradient, 0)
            norms.append(norm)
            losses.append(loss)
        found = torch.stack(norms)
        return GradientSum(
            gradients=sums,
            norms=torch.where(found.isfinite(), found, 0),
            losses=torch.stack(losses),
            nonfinite=units.counted & ~found.isfinite(),
        )

    @full_precision()
    def norms(
        self, inputs: Tensor, labels: Tensor, mask: Tensor, units: Any = None
    ) -> tuple[Tensor, Tensor]:
        """See ``GradientEngine``."""
        found = []
        for loss, gradients in self._per_unit(inputs, labels, _units(units, mask)):
            head = [each for name, each in gradients.items() if name in self._head]
            found.append((_norm(gradients.values()), _norm(head or [torch.zeros_like(loss)])))
        norms, head_norms = (torch.stack(each) for each in zip(*found, strict=True))
        return norms, head_norms

    def _per_unit(
        self, inputs: Tensor, labels: Tensor, units: Units
    ) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        """Yield the loss and the gradients of each unit: the means over its rows that count."""
        rows = zip(self._per_example(inputs, labels), units.mask, units.weights, strict=True)
        for size in np.diff(units.starts):
            total: Tensor | None = None
            gradients: dict[str, Tensor] = {}
            for (loss, row), counts, weight in islice(rows, int(size)):
                share = torch.where(counts, weight.to(loss.dtype) * loss, 0)
                total = share if total is None else total + share
                for name, each in row.items():
                    share = torch.where(counts, weight.to(each.dtype) * each, 0)
                    gradients[name] = gradients[name] + share if name in gradients else share
            assert total is not None  # noqa: S101 (no unit is empty)
            yield total, gradients

    def _per_example(
        self, inputs: Tensor, labels: Tensor
    ) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        """Yield the loss and the gradients of each example."""
        for x, y in zip(torch.split(inputs, 1), torch.split(labels, 1), strict=True):
            with torch.enable_grad():
                loss = example_losses(self.model, x, y, self._autocast).sum()
            found = gradients_of(loss, self.parameters.values())
            gradients = {
                # The gradient of an embedding may be sparse. There is none for what an example skips.
                name: torch.zeros_like(each, dtype=sum_dtype(each))
                if gradient is None
                else gradient.to_dense().to(sum_dtype(gradient))
                for (name, each), gradient in zip(self.parameters.items(), found, strict=True)
            }
            yield loss.detach(), gradients


def _units(ids: Any, mask: Tensor) -> Units:
    return Units(np.arange(len(mask)) if ids is None else ids, mask)


def _norm(gradients: Iterable[Tensor]) -> Tensor:
    # torch's norm of a long float32 vector is off by up to 1e-3; its sum adds pairwise.
    return torch.stack([each.square().sum() for each in gradients]).sum().sqrt()
