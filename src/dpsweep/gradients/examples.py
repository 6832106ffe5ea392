"""Made-up examples, with which a network is tested before its first step."""

from collections.abc import Callable

import torch
from torch import Tensor

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
