"""Tracking of how a model uses its parameters, for engines that need no hooks.

During a forward pass a `TrackedParameter` replaces every trainable parameter. If the model calls a
torch function with it, `ForwardPass` applies the rule of that function
(`dpsweep.gradients.rules`), or refuses it. So support depends on the functions that a layer calls, not
on its class, and every use of a parameter is found. `RecordedPass` records which gradients the engine
``bookkeeping`` needs later.
"""

import math
from abc import ABC, abstractmethod
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeGuard, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from dpsweep.gradients.per_example import (
    Convolutions,
    Derived,
    Instantiated,
    OuterProducts,
    PerExampleGradients,
    Standardization,
    Standardized,
    WeightGradients,
    factors_are_cheaper,
    through,
)
from dpsweep.gradients.refusals import UnsupportedModelError
from dpsweep.models.wide_resnet import standardize

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


# Functions that do not change the order of the numbers.
_RESHAPES = (Tensor.reshape, Tensor.reshape_as, Tensor.view, Tensor.view_as, torch.reshape)
# Functions with a rule, although all their arguments may be parameters and constants.
_NOT_DERIVED = (Tensor.expand, Tensor.repeat, F.embedding, standardize)

# Functions whose arguments are numbers.
_MAKING = frozenset((torch.arange, torch.full, torch.linspace, torch.ones, torch.zeros))

RECORDED: dict[Any, Rule] = {}
"""Rules that only `RecordedPass` can compute; they take precedence over `RULES`."""


class RecordedPass(ForwardPass):
    """A forward pass that computes layers as usual, and taps the graph for the gradients of outputs.

    A function of parameters and constants only returns a derived parameter. Its gradients go back
    through that function to these parameters.
    """

    engine = "bookkeeping"
    rules: ClassVar[Mapping[Any, Rule]] = ChainMap(RECORDED, RULES)

    def __init__(self, examples: int, layers: Mapping[str, str], constants: frozenset[int]):
        """Begin a forward pass.

        Args:
            examples: how many.
            layers: see ``ForwardPass``.
            constants: ids of tensors that do not depend on the examples.
        """
        super().__init__(examples, layers)
        self._constants = constants
        # By id; the tensors are kept, so that no other one gets the same id.
        self._made: dict[int, Tensor] = {}
        # Where a gradient is read, and the function that receives it.
        self._taps: list[tuple[Tensor | GradientEdge, Callable[[Tensor], None]]] = []
        self._copies: dict[str, Tensor] = {}
        # For each derived parameter: its source parameters, and how it was standardised.
        self._sources: dict[str, dict[str, Tensor]] = {}
        self._standardized: dict[str, Standardization] = {}
        self._rows: dict[str, Tensor] = {}
        self._factored: list[PerExampleGradients] = []

    def add_constant(self, tensor: Tensor) -> None:
        """Take a tensor as the same for all examples, as long as nothing is written into it."""
        self._made[id(tensor)] = tensor

    def gradients(self, loss: Tensor) -> tuple[dict[str, Tensor], list[PerExampleGradients]]:
        """Run the backward pass from the summed losses; return gradients as rows, and as factors."""
        taps: Any = [tap for tap, _ in self._taps]
        gradients = list(torch.autograd.grad(loss, taps, allow_unused=True))
        while self._taps:  # pop frees the memory of each gradient when it is received
            (_, receive), gradient = self._taps.pop(), gradients.pop()
            if gradient is not None:
                receive(gradient)
        return self._rows, self._factored

    def compute(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """See ``ForwardPass``; a function of parameters and constants returns a derived parameter."""
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        alone = all(self.same_for_all(each) for each in tensors)
        if alone and function not in _NOT_DERIVED:
            return self.derive(function, args, kwargs)
        return super().compute(function, args, kwargs)

    def copies(self, parameter: Tensor | None) -> Tensor | None:
        """See ``ForwardPass``."""
        if not trains(parameter):
            return None
        name = parameter.parameter_name
        if name not in self._copies:
            value = parameter.value.detach()
            self._copies[name] = value.expand(self.examples, *value.shape).requires_grad_()
            self._taps.append((self._copies[name], partial(self.add_rows, parameter)))
        return self._copies[name]

    def keeps_factors(self, x: Tensor, weight: Tensor) -> bool:
        """See ``ForwardPass``; always for a derived weight: its gradients go back through a function."""
        if not trains(weight) or self.is_derived(weight):
            return True
        return factors_are_cheaper(math.prod(x.shape[:-1]) // self.examples, *weight.shape)

    def outer_products(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """See ``ForwardPass``."""

        def receive(gradient: Tensor, features: Tensor) -> None:
            outputs = gradient.reshape(self.examples, -1, gradient.shape[-1])
            if trains(weight):
                inputs = features.reshape(self.examples, -1, features.shape[-1])
                found = OuterProducts(weight.parameter_name, weight.shape, inputs, outputs)
                self.add(weight, found)
            if trains(bias):
                self.add_rows(bias, outputs.sum(1))

        return self.tap(F.linear(x, plain(weight), plain(bias)), x, receive)

    def tap(self, y: Tensor, inputs: Tensor, receive: Callable[[Tensor, Tensor], None]) -> Tensor:
        """Call ``receive`` with the gradient of ``y`` and with ``inputs`` after the backward pass."""
        inputs = inputs.detach()
        version = inputs._version

        def checked(gradient: Tensor) -> None:
            if inputs._version != version:
                raise UnsupportedModelError(
                    f"the input of shape {tuple(inputs.shape)} of a trainable layer is modified "
                    "in place after the layer: use the out-of-place operation"
                )
            receive(gradient, inputs)

        # The edge stays valid if the model modifies this output in place later.
        self._taps.append((get_gradient_edge(y), checked))
        return y

    def add(self, weight: TrackedParameter, gradients: WeightGradients) -> None:
        """Add the gradients of a weight in the cheaper form."""
        name = weight.parameter_name
        sources, origin = self._sources.get(name), self._standardized.get(name)
        if sources is None:
            if isinstance(gradients, Convolutions) and not gradients.is_cheaper:
                self.add_rows(weight, gradients.rows())
            else:
                self._factored.append(gradients)
            return
        kept: WeightGradients | Instantiated = gradients
        if not isinstance(gradients, Convolutions) or gradients.groups > 1:
            origin = None
        if isinstance(gradients, Convolutions) and gradients.rows_are_smaller:
            summed = gradients if origin is None else gradients.without_level()
            kept = Instantiated({name: summed.rows()})
        found = weight.value, sources, kept, self.examples
        self._factored.append(Derived(*found) if origin is None else Standardized(*found, origin))

    def add_rows(self, parameter: TrackedParameter, rows: Tensor) -> None:
        """Add per-example gradients of a parameter; those of a derived one are added to its sources."""
        sources = self._sources.get(parameter.parameter_name)
        gradients = {parameter.parameter_name: rows}
        if sources is not None:
            gradients = through(parameter.value, sources, rows, is_grads_batched=True)
        for name, each in gradients.items():
            self._rows[name] = self._rows[name] + each if name in self._rows else each

    def origin(self, parameter: TrackedParameter) -> str:
        """See ``ForwardPass``."""
        name = parameter.parameter_name
        return next(iter(self._sources.get(name, [name])))

    def is_derived(self, parameter: TrackedParameter) -> bool:
        """Return whether a parameter was computed from others."""
        return parameter.parameter_name in self._sources

    def standardization(self, weight: Tensor) -> Standardization | None:
        """Return how a derived weight was standardised, None if it was not."""
        return self._standardized.get(weight.parameter_name) if trains(weight) else None

    def derive(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        origin: Standardization | None = None,
    ) -> TrackedParameter:
        """Compute a function of parameters and constants; return a derived parameter.

        Args:
            function: of torch.
            args: of the function.
            kwargs: of the function.
            origin: how it standardises; if None, ``F.batch_norm`` and reshapes are recognised.
        """
        parents = list(tracked_in(*args, *kwargs.values()))
        args, kwargs = tree_map_only(TrackedParameter, plain, (args, kwargs))
        value = function(*args, **kwargs)
        if not isinstance(value, Tensor) or not value.requires_grad:
            raise self.refusal(f"is used by {function.__name__}()", *parents)
        name = f"{function.__name__}({', '.join(each.parameter_name for each in parents)})"
        name = f"{name} #{len(self._sources)}"
        self._sources[name] = {}
        for each in parents:
            itself = {each.parameter_name: each.value}
            self._sources[name] |= self._sources.get(each.parameter_name, itself)
        if function is F.batch_norm:
            origin = Standardization.by_batch_norm(*args, **kwargs)
        elif function in _RESHAPES:
            origin = self.standardization(parents[0])
        if origin is not None:
            self._standardized[name] = origin
        return TrackedParameter.of(name, value, self)

    def same_for_all(self, tensor: Tensor) -> bool:
        """Return whether a tensor is independent of the examples."""
        if trains(tensor):
            return True
        same = {id(tensor), id(tensor._base)}
        made = same & self._made.keys() and tensor._version == 0
        return bool(made or same & self._constants)


class Constants(TorchFunctionMode):
    """A mode that knows what a forward pass makes without a tensor, as ``torch.arange(length)``."""

    def __init__(self, forward_pass: RecordedPass):
        """Keep the forward pass, which learns the constants."""
        super().__init__()
        self._forward_pass = forward_pass

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Compute a function of torch."""
        found = func(*args, **(kwargs or {}))
        moved = func is Tensor.to and self._forward_pass.same_for_all(args[0])
        if (moved or func in _MAKING) and not trains(found):
            self._forward_pass.add_constant(found)
        return found
