"""Track how a model uses its parameters, so that engines see into any model without hooks.

During a forward pass every trainable parameter is replaced by a `TrackedParameter`. Whatever torch
function the model hands it to, `Uses` looks up the rule of that function
(`dpsweep.gradients.rules`), or refuses it. So a layer is supported because of what it
computes, not because of its class, and no use of a parameter can go unnoticed.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, TypeGuard, TypeVar

import torch
from torch import Tensor

from dpsweep.gradients.refusals import UnsupportedModelError

Rule = Callable[..., Any]
"""Takes `Uses` and the arguments of a function of torch, and computes that function."""

RULES: dict[Any, Rule] = {}
"""The registry of rules, by function of torch (`dpsweep.gradients.rules`)."""

# What may be asked of a parameter without using its values.
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
    """Stands for a trainable parameter in a forward pass."""

    parameter_name: str
    value: Tensor
    uses: "Uses"

    @staticmethod
    def of(name: str, value: Tensor, uses: "Uses") -> "TrackedParameter":
        """Track ``value``, which is what the uses compute with."""
        tracked = value.detach().as_subclass(TrackedParameter)
        tracked.parameter_name, tracked.value, tracked.uses = name, value, uses
        return tracked

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Let the parameter's uses compute what torch is asked to compute."""
        kwargs = kwargs or {}
        if func in _QUESTIONS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        parameter = next(tracked_in(*args, *kwargs.values()))
        return parameter.uses.compute(func, args, kwargs)


def tracked_in(*values: Any) -> Iterator[TrackedParameter]:
    """Find the tracked parameters among the arguments of a torch function."""
    for value in values:
        if isinstance(value, TrackedParameter):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from tracked_in(*value)


def trains(value: Any) -> TypeGuard[TrackedParameter]:
    """Whether an argument of a torch function is a parameter that trains."""
    return isinstance(value, TrackedParameter)


_Value = TypeVar("_Value", Tensor, Tensor | None)


def plain(value: _Value) -> _Value:
    """Return the tensor behind a tracked parameter; other values as they are."""
    return value.value if isinstance(value, TrackedParameter) else value


class Layer(NamedTuple):
    """How a layer computes, and the gradients of all examples: what ``Uses.layer`` takes.

    All but ``forward`` take the gradient of the output, and what ``forward`` saved.
    """

    forward: Callable[..., tuple[Tensor, tuple[Tensor | None, ...]]]
    """from input, weight and bias to the output, and to the tensors that are saved"""
    input_gradient: Callable[..., Tensor]
    weight_rows: Callable[..., Tensor]
    """the gradients of the weight, shape (examples, *shape)"""
    bias_rows: Callable[..., Tensor] | None = None
    """those of the bias"""
    contiguous: bool = False
    """whether they need a contiguous gradient of the output"""


class _PerExample(torch.autograd.Function):
    """A layer whose backward pass gives the copies of its parameters their gradients."""

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
        # That of the input first, while the gradient of the output is still in the cache.
        dx = layer.input_gradient(*saved) if needs_x else None
        dweight = layer.weight_rows(*saved) if needs_weight else None
        dbias = layer.bias_rows(*saved) if layer.bias_rows and needs_bias else None
        return None, dx, None, None, dweight, dbias


class Uses(ABC):
    """The uses of the trainable parameters in one forward pass.

    Rules compute with batches: tensors whose first dimension is the example. It may also have
    several rows for each example, one example after the other, as where a model cuts its images
    into windows.

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
        """Return the copies of a tracked parameter: shape (examples, *shape), one an example.

        None stands for a parameter that is absent or does not train.
        """

    def layer(
        self, layer: Layer, x: Tensor, weight: Tensor | None, bias: Tensor | None = None
    ) -> Tensor:
        """Compute a layer so that the backward pass finds the gradients of all examples.

        Autograd returns them as the gradients of copies of the parameters. The forward pass does not
        read the copies: it uses the parameters themselves. That costs less
        than letting every example multiply by its own copy, because forward and input gradient
        stay what they are.

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
        """Whether ``outer_products`` suits a linear layer on the batch ``x``, or else copies."""

    @abstractmethod
    def outer_products(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Compute ``F.linear``; keep the gradients of its weight as factors."""

    def compute(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Compute a function of torch by its rule.

        Raises:
            UnsupportedModelError: if there is no rule for it.
        """
        if function not in self.rules:
            name = getattr(function, "__name__", function)
            raise self.refusal(f"is used by {name}()", *args, *kwargs.values())
        return self.rules[function](self, *args, **kwargs)

    def origin(self, parameter: TrackedParameter) -> str:
        """Return the name that the model has for a parameter, or for one that it was computed from."""
        return parameter.parameter_name

    def refusal(self, use: str, *among: Any) -> UnsupportedModelError:
        """Return the error for an impossible use of the first parameter among some arguments."""
        name = self.origin(next(tracked_in(*among)))
        layer = f" of a {self._layers[name]}" if name in self._layers else ""
        found = f"trainable parameter {name!r}{layer} {use}"
        return UnsupportedModelError(
            f"{found}, for which engine {self.engine!r} has no per-example gradient; engine auto takes one "
            "that has",
            because=found.rstrip(","),
        )

    def batch(self, x: Tensor, *parameters: Tensor | None) -> Tensor:
        """Return ``x``, a tensor that meets parameters, if its rows can be those of examples."""
        if trains(x):
            raise self.refusal("meets another parameter", x)
        if x.dim() == 0 or x.shape[0] == 0 or x.shape[0] % self.examples:
            use = f"meets an input of shape {tuple(x.shape)} for {self.examples} examples"
            raise self.refusal(use, *parameters)
        return x

    def one_row_each(self, x: Tensor, *parameters: Tensor | None) -> Tensor:
        """Return ``x`` like ``batch``, if it has one row for each example."""
        if self.batch(x, *parameters).shape[0] != self.examples:
            use = f"meets several rows for each example, an input of shape {tuple(x.shape)},"
            raise self.refusal(use, *parameters)
        return x

    def by_example(self, x: Tensor) -> Tensor:
        """Return a batch in the shape (examples, ...): rows of an example become a dimension."""
        if x.shape[0] == self.examples:
            return x
        return x.reshape(self.examples, -1, *x.shape[1:])

    def broadcast(self, parameter: Tensor, dimensions: int, rows: int) -> Tensor:
        """Return the copies of a parameter in a shape that meets a batch number by number.

        Args:
            parameter: a tracked one.
            dimensions: of the batch.
            rows: of the batch; each gets the copy of its example.
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
