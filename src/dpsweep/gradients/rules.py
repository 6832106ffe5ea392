"""Rules: functions of torch with per-example gradients.

The first argument of a rule is the `ForwardPass`; the others are those of its function, any of which
may be a trainable parameter. A rule computes the function for a batch, and provides the gradients of
its parameters in one of three ways:

- ``forward_pass.layer(Layer(forward, input_gradient, weight_rows), x, weight)`` computes a layer as
  usual; ``weight_rows`` computes per-example gradients from the gradient of the output.
- ``forward_pass.broadcast(parameter, ...)`` returns a copy for each row of a batch, for elementwise
  operations. Autograd returns the gradients of all copies.
- ``forward_pass.tap(y, x, receive)`` exists in the engine ``bookkeeping`` only. After the backward
  pass, ``receive`` gets the gradient of ``y`` and the input ``x``. It passes the gradients as factors
  (`dpsweep.gradients.per_example`) to ``forward_pass.add``. This suits large weights. Register such a
  rule with ``taps=True``; ``bookkeeping`` prefers it to another rule of the function.

Both engines refuse functions without a rule; ``auto`` then chooses another engine.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from dpsweep.gradients.per_example import Convolutions, Lookups, Standardization, sum_dtype
from dpsweep.gradients.tracked_parameters import (
    RECORDED,
    RULES,
    ForwardPass,
    Layer,
    RecordedPass,
    Rule,
    plain,
    tracked_in,
    trains,
)
from dpsweep.models.wide_resnet import SMALLEST_SQUARES, standardize

_Rule = TypeVar("_Rule", bound=Rule)


def rule(*functions: Any, taps: bool = False) -> Callable[[_Rule], _Rule]:
    """Register a rule for functions of torch; with ``taps`` it is for ``bookkeeping`` only."""

    def register(compute: _Rule) -> _Rule:
        (RECORDED if taps else RULES).update(dict.fromkeys(functions, compute))
        return compute

    return register


@rule(F.linear)
def linear(
    forward_pass: ForwardPass, input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Compute ``F.linear``."""
    x = forward_pass.batch(input, weight, bias)
    if forward_pass.keeps_factors(x, weight):
        return forward_pass.outer_products(x, weight, bias)
    y = forward_pass.layer(LINEAR, forward_pass.by_example(x), weight, bias)
    return y.reshape(*input.shape[:-1], -1)


def _normalisation(
    forward: Callable[..., tuple[Tensor, tuple[Tensor | None, ...]]],
    input_gradient: Callable[..., Tensor],
    normalised: Callable[..., Tensor],
    summed: Callable[[Tensor], Tensor],
) -> Layer:
    """Return a layer that normalises its input, and then scales and shifts it.

    Args:
        forward: see ``Layer``.
        input_gradient: see ``Layer``.
        normalised: maps the tensors that ``forward`` saved to the normalised input, in new memory.
        summed: sums over all numbers of an example that belong to the same weight.
    """

    def weight_rows(g: Tensor, *saved: Tensor) -> Tensor:
        return summed(normalised(*saved).mul_(g))

    def bias_rows(g: Tensor, *_: Tensor) -> Tensor:
        return summed(g)

    return Layer(forward, input_gradient, weight_rows, bias_rows, contiguous=True)


_ONLY_INPUT = [True, False, False]


@rule(F.layer_norm)
def layer_norm(
    forward_pass: ForwardPass,
    input: Tensor,
    normalized_shape: list[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Compute ``F.layer_norm``, in the parameters' dtype."""
    x = forward_pass.by_example(forward_pass.batch(input, weight, bias)).to(_dtype(weight, bias))
    shape = list(normalized_shape)

    def forward(x: Tensor, weight: Any, bias: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
        y, mean, rate = torch.native_layer_norm(x, shape, weight, bias, eps)
        return y, (x, mean, rate, weight, bias)

    def input_gradient(g: Tensor, x: Tensor, *saved: Tensor) -> Tensor:
        backward = torch.ops.aten.native_layer_norm_backward
        found: Tensor = backward(g, x, shape, *saved, _ONLY_INPUT)[0]
        return found

    def normalised(x: Tensor, mean: Tensor, rate: Tensor, *_: Tensor) -> Tensor:
        return (x - mean).mul_(rate)

    def summed(rows: Tensor) -> Tensor:
        return rows.reshape(forward_pass.examples, -1, *shape).sum(1)

    layer = _normalisation(forward, input_gradient, normalised, summed)
    return forward_pass.layer(layer, x, weight, bias).reshape(input.shape)


@rule(F.group_norm)
def group_norm(
    forward_pass: ForwardPass,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Compute ``F.group_norm``, in the parameters' dtype."""
    x = forward_pass.one_row_each(input, weight, bias).to(_dtype(weight, bias)).contiguous()
    examples, channels, *_ = x.shape
    sizes = examples, channels, x[0, 0].numel(), num_groups

    def forward(x: Tensor, weight: Any, bias: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
        y, mean, rate = torch.native_group_norm(x, weight, bias, *sizes, eps)
        return y, (x, mean, rate, weight)

    def input_gradient(g: Tensor, *saved: Tensor) -> Tensor:
        backward = torch.ops.aten.native_group_norm_backward
        found: Tensor = backward(g, *saved, *sizes, _ONLY_INPUT)[0]
        return found

    def normalised(x: Tensor, mean: Tensor, rate: Tensor, _: Tensor) -> Tensor:
        grouped = x.view(examples, num_groups, -1)
        return (grouped - mean[..., None]).mul_(rate[..., None]).view_as(x)

    def summed(rows: Tensor) -> Tensor:
        return rows.view(examples, channels, -1).sum(2)

    layer = _normalisation(forward, input_gradient, normalised, summed)
    return forward_pass.layer(layer, x, weight, bias)


@rule(F.batch_norm)
def batch_norm(
    forward_pass: ForwardPass,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Compute ``F.batch_norm`` with fixed statistics, an affine map of each channel."""
    if training or running_mean is None or running_var is None:
        use = "is used by batch_norm() with statistics of the batch"
        raise forward_pass.refusal(use, input, weight, bias)
    x = forward_pass.batch(input, weight, bias)
    examples, channels = forward_pass.examples, x.shape[1]
    along = channels, *[1] * (x.dim() - 2)

    def forward(x: Tensor, weight: Any, bias: Any) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        y = F.batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)
        rate = (running_var + eps).rsqrt()
        return y, (x, running_mean.view(along), rate.view(along), weight)

    def input_gradient(
        g: Tensor, x: Tensor, mean: Tensor, rate: Tensor, weight: Tensor | None
    ) -> Tensor:
        return g * (rate if weight is None else rate * weight.view(along)).to(g.dtype)

    def normalised(x: Tensor, mean: Tensor, rate: Tensor, _: Any) -> Tensor:
        return (x - mean).mul_(rate)

    def summed(rows: Tensor) -> Tensor:
        return rows.reshape(examples, -1, channels, rows[0, 0].numel()).sum((1, 3))

    layer = _normalisation(forward, input_gradient, normalised, summed)
    return forward_pass.layer(layer, x, weight, bias)


@rule(F.rms_norm)
def rms_norm(
    forward_pass: ForwardPass,
    input: Tensor,
    normalized_shape: list[int],
    weight: Tensor,
    eps: float | None = None,
) -> Tensor:
    """Compute ``F.rms_norm``."""
    x = forward_pass.batch(input, weight)
    normalised = F.rms_norm(x, list(normalized_shape), None, eps)
    return normalised * forward_pass.broadcast(weight, x.dim(), len(x))


@rule(F.scaled_dot_product_attention)
def attention(
    forward_pass: ForwardPass,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor,
    *settings: Any,
    **options: Any,
) -> Tensor:
    """Compute ``F.scaled_dot_product_attention`` with a trainable bias."""
    for each in tracked_in(query, key, value):
        raise forward_pass.refusal("is a query, key or value that all examples share", each)
    x = forward_pass.batch(query, attn_mask)
    bias = forward_pass.broadcast(attn_mask, x.dim(), len(x))
    return F.scaled_dot_product_attention(query, key, value, bias, *settings, **options)


@rule(Tensor.expand)
def expand(forward_pass: ForwardPass, parameter: Tensor, *sizes: Any) -> Tensor:
    """Compute ``parameter.expand(rows, ...)``, which models use for class tokens."""
    shape = sizes if isinstance(sizes[0], int) else tuple(sizes[0])
    rows = shape[0]
    if len(shape) != parameter.dim() or rows < 1 or rows % forward_pass.examples:
        raise forward_pass.refusal(f"is expanded to {shape}, not to the examples", parameter)
    return forward_pass.broadcast(parameter, len(shape), rows).expand(shape)


@rule(Tensor.repeat)
def repeat(forward_pass: ForwardPass, parameter: Tensor, *sizes: Any) -> Tensor:
    """Compute ``parameter.repeat(rows, 1, ...)``."""
    times = sizes if isinstance(sizes[0], int) else tuple(sizes[0])
    if any(each != 1 for each in times[1:]):
        raise forward_pass.refusal(f"is repeated {times} times", parameter)
    return expand(forward_pass, parameter, times[0], *[-1] * (len(times) - 1))


def _number_by_number(
    function: Callable[..., Tensor], forward_pass: ForwardPass, *args: Any, **kwargs: Any
) -> Tensor:
    """Compute an elementwise function of a batch and parameters: biases, scales, positions."""
    values = (*args, *kwargs.values())
    batches = [
        each for each in values if isinstance(each, Tensor) and not trains(each) and each.dim()
    ]
    if not batches or any(each.dim() != batches[0].dim() for each in batches):
        raise forward_pass.refusal(f"is used by {function.__name__}() without a batch", *values)
    for x in batches:
        forward_pass.batch(x, *values)

    def with_copies(value: Any) -> Any:
        return (
            forward_pass.broadcast(value, batches[0].dim(), len(batches[0]))
            if trains(value)
            else value
        )

    return function(
        *(with_copies(each) for each in args),
        **{name: with_copies(each) for name, each in kwargs.items()},
    )


for _function in (
    *(
        getattr(namespace, name)
        for name in ("add", "addcmul", "div", "mul", "sub", "true_divide")
        for namespace in (torch, Tensor)
    ),
    *(Tensor.add_, Tensor.mul_, Tensor.__rsub__, Tensor.__rtruediv__),
):
    rule(_function)(partial(_number_by_number, _function))


@rule(F.conv2d)
def head_conv2d(
    forward_pass: ForwardPass,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *settings: Any,
) -> Tensor:
    """Compute ``F.conv2d`` for the head of a residual network: a 1x1 kernel after global pooling."""
    x = forward_pass.one_row_each(input, weight, bias)
    if not trains(weight) or x.shape[1:] != weight.shape[1:]:
        raise forward_pass.refusal(
            f"is used by conv2d() on an input of shape {tuple(x.shape)}", weight, bias
        )
    return forward_pass.outer_products(x.flatten(1), weight, bias)[:, :, None, None]


@rule(F.conv2d, taps=True)
def conv2d(
    forward_pass: RecordedPass,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    """Compute ``F.conv2d``."""
    x = forward_pass.one_row_each(input, weight, bias)
    if isinstance(padding, str):
        x, padding = _explicit_padding(x, weight, padding, _pair(dilation))
    settings = _pair(stride), _pair(padding), _pair(dilation), groups
    standardized = forward_pass.standardization(weight) is not None
    y = F.conv2d(x, plain(weight), None if standardized else plain(bias), *settings)
    # On a GPU, checking whether they can be used would cost more than computing them again.
    exact = y.device.type == "cpu" and y.dtype == sum_dtype(y)
    useful = Convolutions("", plain(weight).shape, x, y, *settings).reads_responses
    responses = y.detach() if standardized and exact and useful else None
    version = y._version
    if standardized and bias is not None:
        y = y + plain(bias)[:, None, None]

    def receive(gradient: Tensor, inputs: Tensor) -> None:
        if trains(weight):
            same = responses is not None and responses._version == version
            found = weight.parameter_name, weight.shape, inputs, gradient, *settings
            forward_pass.add(weight, Convolutions(*found, responses if same else None))
        if trains(bias):
            forward_pass.add_rows(bias, gradient.flatten(2).sum(2))

    return forward_pass.tap(y, x, receive)


@rule(F.embedding, taps=True)
def embedding(
    forward_pass: RecordedPass,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Compute ``F.embedding``; indices of shape (1, tokens) are the same for all examples.

    So are positions that the network makes itself, ``torch.arange(tokens)``.
    """
    assert trains(weight)  # noqa: S101 (no other argument can be a parameter)
    if forward_pass.is_derived(weight) or max_norm is not None or scale_grad_by_freq:
        raise forward_pass.refusal("is used by embedding() with special options", weight)
    if input.dim() == 1 and forward_pass.same_for_all(input):
        return forward_pass.derive(F.embedding, (input, weight, padding_idx), {})
    if input.dim() < 2 or input.shape[0] not in (1, forward_pass.examples):
        raise forward_pass.refusal(
            f"is looked up with indices of shape {tuple(input.shape)}", weight
        )
    indices = input.expand(forward_pass.examples, *input.shape[1:])

    def receive(gradient: Tensor, _: Tensor) -> None:
        outputs = gradient.flatten(1, -2)
        tokens = indices.flatten(1)
        if padding_idx is not None:
            padding = tokens == padding_idx % len(weight)
            outputs = outputs.masked_fill(padding[..., None], 0)
        forward_pass.add(weight, Lookups(weight.parameter_name, weight.shape, tokens, outputs))

    return forward_pass.tap(F.embedding(indices, weight.value, padding_idx), indices, receive)


@rule(standardize, taps=True)
def standardized_weight(forward_pass: RecordedPass, weight: Tensor, gain: Tensor) -> Tensor:
    """Compute `standardize` of two parameters."""
    if not (trains(weight) and trains(gain)):
        use = "is used by standardize() with one that does not train"
        raise forward_pass.refusal(use, weight, gain)
    epsilon = SMALLEST_SQUARES / weight[0].numel()
    origin = Standardization(weight.value, gain.value, epsilon)
    return forward_pass.derive(standardize, (weight, gain), {}, origin)


def _linear(
    x: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    return F.linear(x, weight, bias), (x, weight)


def _tokens(x: Tensor) -> Tensor:
    return x.reshape(len(x), -1, x.shape[-1])


LINEAR = Layer(
    forward=_linear,
    input_gradient=lambda g, x, weight: g @ weight.to(g.dtype),
    weight_rows=lambda g, x, weight: _tokens(g).mT @ _tokens(x.to(g.dtype)),
    bias_rows=lambda g, x, weight: _tokens(g).sum(1),
)
"""``F.linear`` for small weights."""


def _dtype(weight: Tensor | None, bias: Tensor | None) -> torch.dtype:
    parameter = weight if weight is not None else bias
    assert parameter is not None  # noqa: S101 (one of them is tracked)
    return parameter.dtype


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


def _explicit_padding(
    x: Tensor, weight: Tensor, padding: str, dilation: tuple[int, int]
) -> tuple[Tensor, int]:
    """Return ``x`` padded as by the padding "same" or "valid", and the remaining padding, 0."""
    if padding == "same":
        rows, columns = (
            extent * (size - 1) for extent, size in zip(dilation, weight.shape[2:], strict=True)
        )
        x = F.pad(x, [columns // 2, columns - columns // 2, rows // 2, rows - rows // 2])
    return x, 0
