"""Refusals, for every engine: models without well-defined per-example gradients, and invalid batches."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from dpsweep.base.errors import DpsweepError
from dpsweep.models.architectures import has_statistics
from dpsweep.study.messages import shorten


class UnsupportedModelError(DpsweepError, ValueError):
    """A model with a part for which an engine cannot compute exact per-example gradients.

    Attributes:
        because: that part alone, for the warning that a slower engine was chosen.
    """

    def __init__(self, message: str, because: str = ""):
        super().__init__(message)
        self.because = because or message


def without_influence(names: Iterable[str]) -> UnsupportedModelError:
    """Return the error for parameters without influence on the outputs, with the line that freezes them."""
    listed = sorted(names)
    return UnsupportedModelError(
        f"trainable parameters {shorten(map(repr, listed))} have no influence on the loss, so they have no "
        "per-example gradient: freeze them. In a study, this line of the section of the method does so:\n"
        f"  freeze: [{', '.join(listed)}]"
    )


def check_model(model: nn.Module, head_parameters: frozenset[str]) -> dict[str, nn.Parameter]:
    """Return the trainable parameters of a model by name, in the model's order.

    Raises:
        UnsupportedModelError: nothing trains, a head parameter does not train, a layer would use statistics
            of the batch, a trainable parameter is read from a cache, or two trainable weights share their
            memory.
    """
    parameters = {name: each for name, each in model.named_parameters() if each.requires_grad}
    if not parameters:
        raise UnsupportedModelError("the model has no trainable parameter: unfreeze some")
    if unknown := sorted(head_parameters - parameters.keys()):
        raise UnsupportedModelError(
            f"head parameters: found {shorten(unknown)}; allowed: names of trainable parameters"
        )
    refuse_batch_statistics(model)
    _refuse_cached(model)
    _refuse_shared_memory(model)
    return parameters


def _refuse_cached(model: nn.Module) -> None:
    """Refuse trainable attention biases that a layer of timm reads from a cache in evaluation mode."""
    layers = [each for each in model.modules() if hasattr(each, "attention_bias_cache")]
    cached = [
        each
        for each in layers
        if not each.training and any(one.requires_grad for one in each.parameters(recurse=False))
    ]
    if cached:
        kinds = sorted({type(each).__name__ for each in cached})
        raise UnsupportedModelError(
            f"{len(cached)} layers ({', '.join(kinds)}) cache their attention biases in evaluation mode: the "
            "biases would get no gradient, and their updates no effect. Train a head, FiLM or LoRA, or "
            "freeze these biases; in a study: freeze: ['*attention_biases']"
        )


def refuse_batch_statistics(model: nn.Module) -> None:
    """Refuse a model that normalises with statistics of the batch in its current mode.

    Raises:
        UnsupportedModelError: naming the layer.
    """
    for name, module in model.named_modules():
        if has_statistics(module) and (module.training or module.running_mean is None):
            fault = "is in train mode" if module.training else "has no running statistics"
            raise UnsupportedModelError(
                f"layer {name!r}: {type(module).__name__} {fault}, so that it mixes the examples of a batch; "
                "allowed: model.eval() with the statistics of public pretraining, or group or layer "
                "normalisation"
            )


def _refuse_shared_memory(model: nn.Module) -> None:
    """Refuse two parameters in one memory, as after ``b.data = a.data``."""
    first: dict[int, tuple[str, nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.is_meta:  # it has no memory
            continue
        known, other = first.setdefault(parameter.data_ptr(), (name, parameter))
        if other is not parameter and (parameter.requires_grad or other.requires_grad):
            raise UnsupportedModelError(
                f"trainable weight {name!r} is tied to {known!r}: they are two parameters in one "
                "memory, and neither has the whole gradient; untie the two, or freeze both"
            )


class BatchError(UnsupportedModelError):
    """An invalid micro-batch; the message contains what was found and what is allowed."""


def check_batch(inputs: Any, labels: Any, mask: Any) -> None:
    """Check the form of a micro-batch. This is cheap and does not wait for the device.

    Args:
        inputs: a tensor whose first dimension is the example.
        labels: class indices, int64, one for each example.
        mask: which examples count, bool, one for each.

    Raises:
        BatchError: one is not a tensor, or has a wrong type or shape.
    """
    dense = isinstance(inputs, Tensor) and not inputs.is_nested and inputs.layout == torch.strided
    if not dense or inputs.dim() == 0:
        raise BatchError(
            f"inputs: found {described(inputs)}; allowed: one dense tensor whose first dimension is the "
            "example"
        )
    if torch.is_inference_mode_enabled():
        raise BatchError(
            "found torch.inference_mode(), in which there are no gradients; allowed: torch.no_grad(), or none"
        )
    wanted = (len(inputs),)
    classes = "the class of each example (labels.argmax(1) of one-hot labels)"
    for name, each, kind, what in (
        ("labels", labels, torch.int64, classes),
        ("mask", mask, torch.bool, "whether each example counts"),
    ):
        if not isinstance(each, Tensor) or each.dtype != kind or each.shape != wanted:
            raise BatchError(
                f"{name}: found {described(each)}; allowed: {what}, {kind} of shape {wanted}"
            )


def check_labels(labels: Tensor, mask: Tensor, classes: int) -> None:
    """Check that labels are class indices. This waits for the device.

    Raises:
        BatchError: the label of an example that counts is below 0, or not below ``classes``.
    """
    if bool((mask & ((labels < 0) | (labels >= classes))).any()):
        raise BatchError(
            f"labels: found one that is not a class of the network; allowed: 0 to {classes - 1}, because the "
            f"network has {classes} outputs. Leave out or mask examples without a label"
        )


def check_outputs(outputs: Any, examples: int) -> Tensor:
    """Return the outputs of a network if they are logits.

    Raises:
        UnsupportedModelError: they are something else.
    """
    numbers = isinstance(outputs, Tensor) and outputs.is_floating_point()
    if not numbers or outputs.dim() != 2 or len(outputs) != examples or outputs.shape[1] < 2:
        raise UnsupportedModelError(
            f"outputs: found {described(outputs)} for {examples} examples; allowed: logits of shape "
            f"({examples}, classes), with two classes or more"
        )
    found: Tensor = outputs
    return found


def described(value: Any) -> str:
    """Return what a value is: its type, or the dtype and shape of a tensor."""
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    if value.is_nested:
        return "a nested tensor"
    if value.layout != torch.strided:
        return f"a tensor of layout {str(value.layout).removeprefix('torch.')}"
    return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"
