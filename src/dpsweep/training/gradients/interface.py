"""The interface of every per-example gradient engine, and the models that all of them refuse."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpsweep.base.errors import DpsweepError
from dpsweep.models.architectures import has_statistics
from dpsweep.study.clipping import Clipping, NoClipping
from dpsweep.study.messages import shorten
from dpsweep.training.device import sum_dtype


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


class GradientEngine(ABC):
    """Per-example gradients of the cross entropy of ``model(inputs)``, which returns logits.

    Inputs are a tensor whose first dimension is the example, labels are int64 class indices, mask
    is bool; each has ``physical_batch`` rows, and rows with a false mask count for nothing. The
    model runs in the mode (train or eval) that it is in. Nothing waits for the device, except in
    ``opacus`` and in the first call, which may compare engines.

    Attributes:
        parameters: the trainable parameters by name, in the model's order.
    """

    parameters: Mapping[str, nn.Parameter]

    def __init__(
        self,
        model: nn.Module,
        head_parameters: frozenset[str] = frozenset(),
        *,
        autocast: torch.dtype | None = None,
    ):
        """Prepare a model; see ``make_engine``.

        Raises:
            UnsupportedModelError: see `check_model`.
        """
        self.parameters = check_model(model, head_parameters)
        self.model = model
        self._head = head_parameters
        self._autocast = autocast

    @abstractmethod
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

    @abstractmethod
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
        found = self.alone(inputs, labels)
        rows = [
            torch.cat([each.gradients[name].flatten() for name in self.parameters])
            for each in found
        ]
        return torch.stack(rows), torch.cat([each.nonfinite for each in found])

    def alone(self, inputs: Tensor, labels: Tensor) -> list[GradientSum]:
        """Return the gradient of each example, from a batch of its own."""
        mask = torch.ones_like(labels[:1], dtype=torch.bool)
        return [
            self.clipped_sum(x[None], y[None], mask, NoClipping())
            for x, y in zip(inputs, labels, strict=True)
        ]


def example_losses(
    model: Callable[[Tensor], Tensor],
    inputs: Tensor,
    labels: Tensor,
    autocast: torch.dtype | None = None,
) -> Tensor:
    """Return the cross entropy of each example, at least in float32.

    Args:
        model: from inputs to logits.
        inputs: of the examples, shape (physical_batch, ...).
        labels: class indices, shape (physical_batch,), int64.
        autocast: dtype of the model's pass where torch deems it safe.
    """
    with torch.autocast(inputs.device.type, dtype=autocast, enabled=autocast is not None):
        logits = model(inputs)
    return F.cross_entropy(logits.to(sum_dtype(logits)), labels, reduction="none")


def check_model(model: nn.Module, head_parameters: frozenset[str]) -> dict[str, nn.Parameter]:
    """Return the trainable parameters of a model by name, in the model's order.

    Raises:
        UnsupportedModelError: if nothing trains, a head parameter does not train, a layer would use
            statistics of the batch, or two trainable weights share their memory.
    """
    parameters = {name: each for name, each in model.named_parameters() if each.requires_grad}
    if not parameters:
        raise UnsupportedModelError("the model has no trainable parameter: unfreeze some")
    if unknown := sorted(head_parameters - parameters.keys()):
        raise UnsupportedModelError(
            f"head parameters: found {shorten(unknown)}; allowed: names of trainable parameters"
        )
    _refuse_batch_statistics(model)
    _refuse_shared_memory(model)
    return parameters


def _refuse_batch_statistics(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if not has_statistics(module):
            continue
        kind = f"layer {name!r} ({type(module).__name__})"
        if module.running_mean is None or module.running_var is None:
            raise UnsupportedModelError(
                f"{kind} has no running statistics, so that it mixes the examples of a batch, and no "
                "example has a gradient of its own: use group or layer normalisation instead"
            )
        _refuse_train_mode(module, kind)
        # The mode may change after the engine is made.
        if _refuse_train_mode not in module._forward_pre_hooks.values():
            module.register_forward_pre_hook(_refuse_train_mode)


def _refuse_train_mode(module: nn.Module, kind: object) -> None:
    """Refuse statistics of the batch; before a forward pass, ``kind`` is the input."""
    if module.training:
        name = kind if isinstance(kind, str) else f"a {type(module).__name__}"
        raise UnsupportedModelError(
            f"{name} is in train mode, where it mixes the examples of a batch and keeps their "
            "statistics without noise: call model.eval(), so that those of public pretraining stay"
        )


def _refuse_shared_memory(model: nn.Module) -> None:
    """Refuse two parameters in one memory, as after ``b.data = a.data``."""
    first: dict[int, tuple[str, nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        known, other = first.setdefault(parameter.data_ptr(), (name, parameter))
        if other is not parameter and (parameter.requires_grad or other.requires_grad):
            raise UnsupportedModelError(
                f"trainable weight {name!r} is tied to {known!r}: they are two parameters in one "
                "memory, and neither has the whole gradient; untie the two, or freeze both"
            )
