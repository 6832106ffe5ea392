"""Check inputs, labels, masks and outputs before an engine computes with them."""

from typing import Any

import torch
from torch import Tensor, nn

from dpsweep.gradients.refusals import UnsupportedModelError


class BatchError(UnsupportedModelError):
    """An invalid micro-batch; the message contains what was found and what is allowed."""


def check_batch(inputs: Any, labels: Any, mask: Any, device: torch.device) -> None:
    """Check the form of a micro-batch. This is cheap and does not wait for the device.

    Args:
        inputs: a tensor whose first dimension is the example.
        labels: class indices, int64, one for each example.
        mask: which examples count, bool, one for each.
        device: the device of the network.

    Raises:
        BatchError: one is not a tensor, or has a wrong type, shape or device.
    """
    dense = isinstance(inputs, Tensor) and not inputs.is_nested and inputs.layout == torch.strided
    if not dense or inputs.dim() == 0:
        raise BatchError(
            f"inputs: found {_described(inputs)}; allowed: one dense tensor whose first dimension is the "
            "example"
        )
    if torch.is_inference_mode_enabled():
        raise BatchError(
            "found torch.inference_mode(), in which there are no gradients; allowed: torch.no_grad(), or none"
        )
    wanted = (len(inputs),)
    if not isinstance(labels, Tensor) or labels.dtype != torch.int64 or labels.shape != wanted:
        raise BatchError(
            f"labels: found {_described(labels)}; allowed: the number of each example's class, int64 of "
            f"shape {wanted}; labels.argmax(1) makes it of one-hot labels, labels.flatten().long() of others"
        )
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != wanted:
        raise BatchError(
            f"mask: found {_described(mask)}; allowed: whether each example counts, bool of shape {wanted}"
        )
    for name, each in (("inputs", inputs), ("labels", labels), ("mask", mask)):
        if each.device != device:
            raise BatchError(
                f"{name}: found on {each.device}; allowed: {device}, where the network is"
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
    if not isinstance(outputs, Tensor):
        more = "; let the network return its logits" if hasattr(outputs, "logits") else ""
        raise UnsupportedModelError(
            f"outputs: found {_described(outputs)}; allowed: one tensor of logits, shape (examples, "
            f"classes){more}"
        )
    if outputs.dim() != 2 or len(outputs) != examples or not outputs.is_floating_point():
        raise UnsupportedModelError(
            f"outputs: found {_described(outputs)} for {examples} examples; allowed: logits of shape "
            f"({examples}, classes)"
        )
    if outputs.shape[1] < 2:
        raise UnsupportedModelError(
            f"outputs: found {outputs.shape[1]} for each example; allowed: a logit for each class, two or "
            "more, because the cross entropy of one class is always 0"
        )
    return outputs


def unreadable(model: nn.Module, inputs: Tensor, reason: str) -> BatchError:
    """Return the error for a network that fails on made-up examples like those of a micro-batch."""
    first = next((each for each in model.parameters() if each.is_floating_point()), None)
    kind = "" if first is None else f" with weights in {str(first.dtype).removeprefix('torch.')}"
    return BatchError(
        f"inputs: found {_described(inputs)}, which {type(model).__name__}{kind} cannot read: {reason}"
    )


def _described(value: Any) -> str:
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    if value.is_nested:
        return "a nested tensor"
    if value.layout != torch.strided:
        return f"a tensor of layout {str(value.layout).removeprefix('torch.')}"
    return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"
