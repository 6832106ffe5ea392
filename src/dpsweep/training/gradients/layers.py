"""Layers with shared weights whose backward pass returns the gradient of every example.

Each function computes what the ordinary layer computes, and takes in addition *copies* of its
parameters: leaves of shape (examples, *shape), one row an example, that are never read. Autograd
returns the per-example gradients as the gradients of the copies. That costs less than letting
every example multiply by its own copy, because forward and input gradient stay what they are.

Inputs have the example as their first dimension.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class LayerNorm(torch.autograd.Function):
    """``F.layer_norm`` with per-example gradients of scale and bias."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        weight_copies: Tensor | None,
        bias_copies: Tensor | None,
        shape: list[int],
        eps: float,
    ) -> Tensor:
        """Return the normalised input.

        Args:
            ctx: keeps what the backward pass needs.
            x: the input, shape (examples, ..., *shape).
            weight: the scale, of this shape; None is 1.
            bias: of this shape; None is 0.
            weight_copies: of the scale; None where it does not train.
            bias_copies: of the bias; None where it does not train.
            shape: of the last dimensions, which are normalised.
            eps: is added to the variance.
        """
        y, mean, rstd = torch.native_layer_norm(x, shape, weight, bias, eps)
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        ctx.shape = shape
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the input and of the copies."""
        g = gradients[0].contiguous()
        x, weight, bias, mean, rstd = ctx.saved_tensors
        needs_x, _, _, needs_weight, needs_bias, _, _ = ctx.needs_input_grad
        dx = dweight = dbias = None
        if needs_x:
            dx = torch.ops.aten.native_layer_norm_backward(
                g, x, ctx.shape, mean, rstd, weight, bias, [True, False, False]
            )[0]
        rows = (len(x), -1, *ctx.shape)
        if needs_weight:
            dweight = (x - mean).mul_(rstd).mul_(g).reshape(rows).sum(1)
        if needs_bias:
            dbias = g.view(rows).sum(1)
        return dx, None, None, dweight, dbias, None, None


class GroupNorm(torch.autograd.Function):
    """``F.group_norm`` with per-example gradients of scale and bias."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        weight_copies: Tensor | None,
        bias_copies: Tensor | None,
        groups: int,
        eps: float,
    ) -> Tensor:
        """Return the normalised input.

        Args:
            ctx: keeps what the backward pass needs.
            x: the input, shape (examples, channels, ...).
            weight: the scale, shape (channels,); None is 1.
            bias: shape (channels,); None is 0.
            weight_copies: of the scale; None where it does not train.
            bias_copies: of the bias; None where it does not train.
            groups: of channels; each is normalised by itself.
            eps: is added to the variance.
        """
        x = x.contiguous()
        examples, channels = x.shape[:2]
        pixels = x[0, 0].numel()
        y, mean, rstd = torch.native_group_norm(
            x, weight, bias, examples, channels, pixels, groups, eps
        )
        ctx.save_for_backward(x, weight, mean, rstd)
        ctx.sizes = examples, channels, pixels, groups
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the input and of the copies."""
        g = gradients[0].contiguous()
        x, weight, mean, rstd = ctx.saved_tensors
        examples, channels, _, groups = ctx.sizes
        needs_x, _, _, needs_weight, needs_bias, _, _ = ctx.needs_input_grad
        dx = dweight = dbias = None
        if needs_x:
            dx = torch.ops.aten.native_group_norm_backward(
                g, x, mean, rstd, weight, *ctx.sizes, [True, False, False]
            )[0]
        if needs_weight:
            grouped = (examples, groups, -1)
            normalised = (x.view(grouped) - mean[..., None]).mul_(rstd[..., None])
            dweight = normalised.view_as(x).mul_(g).view(examples, channels, -1).sum(2)
        if needs_bias:
            dbias = g.view(examples, channels, -1).sum(2)
        return dx, None, None, dweight, dbias, None, None


class Linear(torch.autograd.Function):
    """``F.linear`` with per-example gradients of weight and bias; for small weights."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        weight_copies: Tensor | None,
        bias_copies: Tensor | None,
    ) -> Tensor:
        """Return ``x @ weight.T + bias``.

        Args:
            ctx: keeps what the backward pass needs.
            x: the input, shape (examples, ..., features).
            weight: shape (outputs, features).
            bias: shape (outputs,); None is 0.
            weight_copies: of the weight; None where it does not train.
            bias_copies: of the bias; None where it does not train.
        """
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the input and of the copies."""
        g = gradients[0]
        x, weight = ctx.saved_tensors
        needs_x, _, _, needs_weight, needs_bias = ctx.needs_input_grad
        dx = dweight = dbias = None
        if needs_x:
            dx = g @ weight.to(g.dtype)
        tokens = g.reshape(len(g), -1, g.shape[-1])
        if needs_weight:
            features = x.to(g.dtype).reshape(len(x), -1, x.shape[-1])
            dweight = tokens.mT @ features
        if needs_bias:
            dbias = tokens.sum(1)
        return dx, None, None, dweight, dbias
