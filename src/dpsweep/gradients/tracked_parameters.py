"""Tracking of how a model uses its parameters, for engines that need no hooks.

During a forward pass a `TrackedParameter` replaces every trainable parameter. If the model calls a
torch function with it, `ForwardPass` applies the rule of that function
(`dpsweep.gradients.rules`), or refuses it. So support depends on the functions that a layer calls, not
on its class, and every use of a parameter is found.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, TypeGuard, TypeVar

import torch
from torch import Tensor

from dpsweep.gradients.refusals import UnsupportedModelError

Rule = Callable[..., Any]
"""A function of `ForwardPass` and the arguments of a function of torch; it computes the latter."""

RULES: dict[Any, Rule] = {}
"""The registry of rules, by function of torch (`dpsweep.gradients.rules`)."""

# Functions of a parameter that do not use its values.
_QUESTIONS: frozenset[Any] = frozenset(
    getattr(Tensor, attribute).__get__
    for attribute in ("device", "dtype", "is_cuda", "ndim", "requires_grad", "shape")
) | {
    Tensor.__len__,
    Tensor.__repr__,
    Tensor.dim,
    Tensor.is_floating_point,
    Tensor.numel,
    Tensor.size,
}


class TrackedParameter(Tensor):
    """A tensor that replaces a trainable parameter in a forward pass."""

    parameter_name: str
    value: Tensor
    forward_pass: "ForwardPass"

    @staticmethod
    def of(name: str, value: Tensor, forward_pass: "ForwardPass") -> "TrackedParameter":
        """Return a tracked parameter; the forward pass computes with ``value``."""
        tracked = value.detach().as_subclass(TrackedParameter)
        tracked.parameter_name, tracked.value, tracked.forward_pass = name, value, forward_pass
        return tracked

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Compute a function of torch in the parameter's forward pass."""
        kwargs = kwargs or {}
        if func in _QUESTIONS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        parameter = next(tracked_in(*args, *kwargs.values()))
        return parameter.forward_pass.compute(func, args, kwargs)


def tracked_in(*values: Any) -> Iterator[TrackedParameter]:
    """Yield the tracked parameters among the arguments of a torch function."""
    for value in values:
        if isinstance(value, TrackedParameter):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from tracked_in(*value)


def trains(value: Any) -> TypeGuard[TrackedParameter]:
    """Return whether an argument of a torch function is a trainable parameter."""
    return isinstance(value, TrackedParameter)


_Value = TypeVar("_Value", Tensor, Tensor | None)


def plain(value: _Value) -> _Value:
    """Return the value of a tracked parameter, and other values unchanged."""
    return value.value if isinstance(value, TrackedParameter) else value


class Layer(NamedTuple):
    """The forward pass and the per-example gradients of a layer, for ``ForwardPass.layer``.

    The arguments of all but ``forward`` are the gradient of the output, and the tensors that ``forward``
    saved.
    """

    forward: Callable[..., tuple[Tensor, tuple[Tensor | None, ...]]]
    """maps input, weight and bias to the output and to the saved tensors"""
    input_gradient: Callable[..., Tensor]
    weight_rows: Callable[..., Tensor]
    """per-example gradients of the weight, shape (examples, *shape)"""
    bias_rows: Callable[..., Tensor] | None = None
    """per-example gradients of the bias"""
    contiguous: bool = False
    """whether these functions need a contiguous gradient of the output"""


class _PerExample(torch.autograd.Function):
    """A layer with a backward pass that returns the gradients of copies of its parameters."""

    @staticmethod
    def forward(
        ctx: Any, layer: Layer, x: Tensor, weight: Tensor, bias: Tensor | None, *copies: Any
    ) -> Tensor:
        y, saved = layer.forward(x, weight, bias)
        ctx.layer = layer
        ctx.save_for_backward(*saved)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        layer: Layer = ctx.layer
        g = gradients[0].contiguous() if layer.contiguous else gradients[0]
        saved = g, *ctx.saved_tensors
        _, needs_x, _, _, needs_weight, needs_bias = ctx.needs_input_grad
        # The input's gradient first, while the gradient of the output is still in the cache.
        dx = layer.input_gradient(*saved) if needs_x else None
        dweight = layer.weight_rows(*saved) if needs_weight else None
        dbias = layer.bias_rows(*saved) if layer.bias_rows and needs_bias else None
        return None, dx, None, None, dweight, dbias


class ForwardPass(ABC):
    """One forward pass of a model, in which rules compute the functions of trainable parameters.

    Rules compute with batches: tensors whose first dimension is the example. A batch may also have
    several rows for each example, one example after the other, if a model splits images into windows.

    Attributes:
        engine: for messages.
        rules: by function of torch.
        examples: how many.
    """

    engine: ClassVar[str]
    rules: ClassVar[Mapping[Any, Rule]] = RULES

    def __init__(self, examples: int, layers: Mapping[str, str]):
        """Begin a forward pass.

        Args:
            examples: how many.
            layers: the kind of layer of each trainable parameter, for messages.
        """
        self.examples = examples
        self._layers = layers

    @abstractmethod
    def copies(self, parameter: Tensor | None) -> Tensor | None:
        """Return one copy of a tracked parameter for each example, shape (examples, *shape).

        Return None for a parameter that is absent or does not train.
        """

    def layer(
        self, layer: Layer, x: Tensor, weight: Tensor | None, bias: Tensor | None = None
    ) -> Tensor:
        """Compute a layer so that the backward pass returns per-example gradients.

        Autograd returns them as the gradients of copies of the parameters. The forward pass does not
        read the copies but the parameters. This costs less than multiplying each example by its own
        copy, because forward pass and input gradient stay the usual ones.

        Args:
            layer: how it computes.
            x: its input, shape (examples, ...).
            weight: its weight, which may train.
            bias: its bias, which may train.
        """
        copies = self.copies(weight), self.copies(bias)
        y: Tensor = _PerExample.apply(layer, x, plain(weight), plain(bias), *copies)
        return y

    @abstractmethod
    def keeps_factors(self, x: Tensor, weight: Tensor) -> bool:
        """Return whether a linear layer on the batch ``x`` uses ``outer_products`` instead of copies."""

    @abstractmethod
    def outer_products(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Compute ``F.linear``; store the gradients of its weight as factors."""

    def compute(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Compute a function of torch by its rule.

        Raises:
            UnsupportedModelError: there is no rule for it.
        """
        if function not in self.rules:
            name = getattr(function, "__name__", function)
            raise self.refusal(f"is used by {name}()", *args, *kwargs.values())
        return self.rules[function](self, *args, **kwargs)

    def origin(self, parameter: TrackedParameter) -> str:
        """Return the name of a parameter in the model, or of one from which it was computed."""
        return parameter.parameter_name

    def refusal(self, use: str, *among: Any) -> UnsupportedModelError:
        """Return the error for an unsupported use of the first parameter among some arguments."""
        name = self.origin(next(tracked_in(*among)))
        layer = f" of a {self._layers[name]}" if name in self._layers else ""
        found = f"trainable parameter {name!r}{layer} {use}"
        return UnsupportedModelError(
            f"{found}, for which engine {self.engine!r} has no per-example gradient; use engine auto",
            because=found.rstrip(","),
        )

    def batch(self, x: Tensor, *parameters: Tensor | None) -> Tensor:
        """Return ``x``, a tensor used together with parameters, if its rows can belong to examples."""
        if trains(x):
            raise self.refusal("meets another parameter", x)
        if x.dim() == 0 or x.shape[0] == 0 or x.shape[0] % self.examples:
            use = f"meets an input of shape {tuple(x.shape)} for {self.examples} examples"
            raise self.refusal(use, *parameters)
        return x

    def one_row_each(self, x: Tensor, *parameters: Tensor | None) -> Tensor:
        """Return ``x`` like ``batch``, if it has exactly one row for each example."""
        if self.batch(x, *parameters).shape[0] != self.examples:
            use = f"meets several rows for each example, an input of shape {tuple(x.shape)},"
            raise self.refusal(use, *parameters)
        return x

    def by_example(self, x: Tensor) -> Tensor:
        """Return a batch of shape (examples, ...); several rows of an example become a dimension."""
        if x.shape[0] == self.examples:
            return x
        return x.reshape(self.examples, -1, *x.shape[1:])

    def broadcast(self, parameter: Tensor, dimensions: int, rows: int) -> Tensor:
        """Return the copies of a parameter in a shape for elementwise operations with a batch.

        Args:
            parameter: a tracked one.
            dimensions: how many the batch has.
            rows: how many the batch has; each gets the copy of its example.
        """
        shape = parameter.shape[1:] if parameter.dim() == dimensions else parameter.shape
        if parameter.dim() > dimensions or (parameter.dim() == dimensions and len(parameter) != 1):
            use = f"of shape {tuple(parameter.shape)} has a row for each row of a batch"
            raise self.refusal(use, parameter)
        copies = self.copies(parameter)
        assert copies is not None  # noqa: S101 (it is tracked)
        alike = [1] * (dimensions - 1 - len(shape))
        if rows == self.examples:
            return copies.reshape(rows, *alike, *shape)
        copies = copies.reshape(self.examples, 1, *alike, *shape)
        return copies.expand(-1, rows // self.examples, *copies.shape[2:]).flatten(0, 1)
