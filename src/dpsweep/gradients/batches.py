"""Checks of inputs, labels, masks and outputs of a batch, and made-up examples for checks of a network."""

from collections.abc import Callable
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


COUNT = 3
"""How many examples are compared."""


def drawn(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return distinct examples like those of a batch, and as many others.

    Args:
        inputs: of the batch. Numbers are drawn at random. Tokens get another order; if that does not
            make the examples distinct, they are replaced by smaller tokens.
    """
    if inputs.is_floating_point() or inputs.is_complex():
        # Not the seed of the parameters: examples equal to parameters saturate the softmax, and then
        # their gradients are only rounding errors.
        generator = torch.Generator().manual_seed(1)
        found = torch.randn((2 * COUNT, *inputs.shape[1:]), generator=generator)
        return _halves(found.to(inputs.device, inputs.dtype))
    rows = inputs if inputs.dim() > 1 else inputs[:, None]
    found = torch.stack([rows[k % len(rows)].roll(k, dims=-1) for k in range(2 * COUNT)])
    if len(torch.unique(found, dim=0)) < len(found):
        shifts = torch.arange(len(found), device=found.device).view(-1, *[1] * (found.dim() - 1))
        found = ((found - shifts) % (found.amax().clamp(min=0) + 1)).to(inputs.dtype)
    return _halves(found.reshape(-1, *inputs.shape[1:]))


def from_batch(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return examples as `drawn` does, from the batch's own numbers times factors from 1/2 to 1.

    So positive numbers, probabilities and category indices stay valid for networks that need them.
    """
    generator = torch.Generator().manual_seed(1)
    rows = inputs[torch.arange(2 * COUNT, device=inputs.device) % len(inputs)]
    factors = 0.5 + 0.5 * torch.rand(rows.shape, generator=generator)
    return _halves(rows * factors.to(rows.device, rows.dtype))


def mixes(run: Callable[[Tensor], Tensor], inputs: Tensor, others: Tensor) -> bool:
    """Return whether a network's output for an example depends on the others of its batch.

    All batches have one size, so kernels round in the same way.

    Args:
        run: maps inputs to outputs, with the same random numbers in every call.
        inputs: of distinct examples.
        others: of as many other examples.
    """
    together = run(inputs)
    error = torch.finfo(together.dtype).eps ** 0.75 * together.abs().nan_to_num(posinf=0).amax()
    for row in range(len(inputs)):
        among = others.clone()
        among[row] = inputs[row]
        if not torch.allclose(
            run(among)[row], together[row], rtol=0, atol=float(error), equal_nan=True
        ):
            return True
    return False


def _halves(examples: Tensor) -> tuple[Tensor, Tensor]:
    first, second = torch.split(examples, COUNT)
    return first, second
