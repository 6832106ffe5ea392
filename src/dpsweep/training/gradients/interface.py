"""What every per-example gradient engine offers, and what it refuses."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpsweep.clipping import Clipping, NoClipping
from dpsweep.errors import DpsweepError


class UnsupportedModelError(DpsweepError, ValueError):
    """A model has a part whose per-example gradients an engine cannot compute exactly."""


@dataclass(frozen=True)
class GradientSum:
    """The scaled per-example gradients of a micro-batch, summed.

    Attributes:
        gradients: for each trainable parameter, the sum over unmasked examples of factor times
            gradient; float32, or float64 for a float64 parameter and from ``expanded`` and ``linear``.
        norms: norm of each example's gradient over all trainable parameters, before scaling,
            shape (physical_batch,); 0 where masked or not finite.
        losses: cross entropy of each example, shape (physical_batch,); 0 where masked.
        nonfinite: unmasked examples whose gradient norm was not finite, shape (physical_batch,),
            bool. Their contribution to the sum is zero.
    """

    gradients: dict[str, Tensor]
    norms: Tensor
    losses: Tensor
    nonfinite: Tensor


class GradientEngine(Protocol):
    """Per-example gradients of the cross entropy of ``model(inputs)``, which returns logits.

    Inputs are a tensor whose first dimension is the example, labels are int64 class indices, mask
    is bool; each has ``physical_batch`` rows, and rows with a false mask count for nothing. The
    model runs in the mode (train or eval) that it is in. Nothing waits for the device, except in
    ``opacus`` and in the first call, which may compare engines.
    """

    @property
    def parameters(self) -> Mapping[str, nn.Parameter]:
        """The trainable parameters by name, in the model's order."""

    def clipped_sum(
        self, inputs: Tensor, labels: Tensor, mask: Tensor, clipping: Clipping
    ) -> GradientSum:
        """Scale each example's gradient by ``clipping`` and sum them.

        Args:
            inputs: of the examples, shape (physical_batch, ...).
            labels: class indices, shape (physical_batch,), int64.
            mask: which examples count, shape (physical_batch,), bool.
            clipping: from the norm of a gradient to its factor.
        """

    def norms(self, inputs: Tensor, labels: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the norms over all trainable parameters, and over those of the head.

        Both have shape (physical_batch,), are 0 where masked, and not finite where the gradient
        is not.
        """

    def gradients(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients themselves, written out: for a look at them, not for training.

        Returns:
            Gradients of shape (physical_batch, d), with the parameters one after the other in the
            model's order, zero where they are not finite; and which of them are not finite.
        """


def one_by_one(engine: GradientEngine, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Compute ``gradients`` of any engine from sums over single examples."""
    mask = torch.ones_like(labels[:1], dtype=torch.bool)
    alone = [
        engine.clipped_sum(x[None], y[None], mask, NoClipping())
        for x, y in zip(inputs, labels, strict=True)
    ]
    rows = [
        torch.cat([each.gradients[name].flatten() for name in engine.parameters]) for each in alone
    ]
    return torch.stack(rows), torch.cat([each.nonfinite for each in alone])


def example_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross entropy of every example, at least in float32."""
    return F.cross_entropy(logits.to(sum_dtype(logits)), labels, reduction="none")


def sum_dtype(tensor: Tensor) -> torch.dtype:
    """Return the dtype in which numbers like those of ``tensor`` are summed."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


@contextmanager
def full_precision() -> Iterator[None]:
    """Let GPUs multiply float32 numbers as such, not as TF32 with a mantissa of 10 bits.

    Otherwise norms and sums differ by 1e-3, and so does the sensitivity. TF32 is torch's default
    for convolutions. Autocast is not touched.
    """
    # torch's stubs lack the latter.
    settings = torch.backends.cuda.matmul, torch.backends.cudnn.conv  # type: ignore[attr-defined]
    before = [each.fp32_precision for each in settings]
    try:
        for each in settings:
            each.fp32_precision = "ieee"
        yield
    finally:
        for each, precision in zip(settings, before, strict=True):
            each.fp32_precision = precision
