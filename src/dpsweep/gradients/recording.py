"""Recording of a forward pass for the engine ``bookkeeping``: which gradients it needs later."""

import math
from collections import ChainMap
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from dpsweep.gradients.convolutions import Convolutions
from dpsweep.gradients.parametrizations import Derived, Standardization, Standardized, through
from dpsweep.gradients.per_example import (
    Instantiated,
    OuterProducts,
    PerExampleGradients,
    WeightGradients,
    factors_are_cheaper,
)
from dpsweep.gradients.refusals import UnsupportedModelError
from dpsweep.gradients.tracked_parameters import (
    RULES,
    ForwardPass,
    Rule,
    TrackedParameter,
    plain,
    tracked_in,
    trains,
)
from dpsweep.models.wide_resnet import standardize

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
