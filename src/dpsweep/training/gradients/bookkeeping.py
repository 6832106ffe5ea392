"""The engine for all parameters: ghost norms and book-keeping."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils._pytree import tree_leaves, tree_map_only

from dpsweep.models.wide_resnet import SMALLEST_SQUARES, standardize
from dpsweep.training.gradients import layers
from dpsweep.training.gradients.convolutions import ConvolutionRows, Convolutions
from dpsweep.training.gradients.derived import Derived, Standardization, Standardized
from dpsweep.training.gradients.factored import FactoredEngine, check_used
from dpsweep.training.gradients.interface import UnsupportedModelError, sum_dtype
from dpsweep.training.gradients.per_example import (
    Lookups,
    OuterProducts,
    PerExampleGradients,
    factors_are_cheaper,
)
from dpsweep.training.gradients.tracked import TrackedParameter, Uses, plain, tracked_in


class BookkeepingEngine(FactoredEngine):
    """Book-keeping (Bu et al. 2023): one backward pass, from which norms and sum are both made.

    The forward pass records the inputs of all linear, convolutional and embedding layers. One
    backward pass returns the gradients of their outputs (and computes no weight gradients). From
    these two factors come the norms and then the clipped sum, without a second backward pass and
    without instantiating per-example gradients. Where these are smaller than the factors (linear
    layers of narrow networks), the backward pass returns them instead.

    Weights that the model computes from parameters before it uses them, as in weight-standardised
    convolutions or tables of relative positions, get their per-example gradients through that
    computation.
    """

    def __init__(
        self,
        model: nn.Module,
        head_parameters: frozenset[str],
        *,
        autocast: torch.dtype | None = None,
    ):
        """Prepare a model; what has no rule is refused when it is met."""
        super().__init__(model, head_parameters, autocast)
        # What is the same for all examples: buffers, and parameters that do not train.
        self._constants = frozenset(
            id(each) for each in (*model.buffers(), *model.parameters()) if not each.requires_grad
        )

    def _per_example(
        self, inputs: Tensor, labels: Tensor
    ) -> tuple[Tensor, list[PerExampleGradients]]:
        uses = _RecordedUses(len(inputs), self._layers, self._constants)
        with torch.enable_grad():
            tracked = {
                name: TrackedParameter.of(name, each, uses)
                for name, each in self.parameters.items()
            }
            losses = self._losses(tracked, inputs, labels)
            rows, gradients = uses.gradients(losses.sum())
        gradients += self._grouped(rows)
        check_used(self.parameters, gradients)
        return losses.detach(), gradients


# They leave the order of the numbers as it is.
_RESHAPES = (Tensor.reshape, Tensor.reshape_as, Tensor.view, Tensor.view_as, torch.reshape)
# With a rule of their own although all their arguments are parameters and constants.
_NOT_DERIVED = (Tensor.expand, Tensor.repeat, F.embedding, standardize)


class _RecordedUses(Uses):
    """Computes layers as usual and taps the graph where their gradients will pass."""

    engine = "bookkeeping"
    functions: ClassVar[Mapping[Any, str]] = {
        **Uses.functions,
        F.conv2d: "conv2d",
        F.embedding: "embedding",
        standardize: "standardize",
    }

    def __init__(self, examples: int, layers: Mapping[str, str], constants: frozenset[int]):
        super().__init__(examples, layers)
        # Of tensors that no example has an influence on.
        self._constants = constants
        # Where a gradient is read, and what is done with it.
        self._taps: list[tuple[Tensor | GradientEdge, Callable[[Tensor], None]]] = []
        self._copies: dict[str, Tensor] = {}
        # Parameters from which a derived one was computed, by its name.
        self._sources: dict[str, dict[str, Tensor]] = {}
        # How a derived one was standardised.
        self._standardized: dict[str, Standardization] = {}
        self._rows: dict[str, Tensor] = {}
        self._factored: list[PerExampleGradients] = []

    def gradients(self, loss: Tensor) -> tuple[dict[str, Tensor], list[PerExampleGradients]]:
        """Go backward from the summed losses; return gradients as rows, and as factors."""
        taps: Any = [tap for tap, _ in self._taps]
        gradients = list(torch.autograd.grad(loss, taps, allow_unused=True))
        while self._taps:  # memory is free again as soon as a gradient is received
            (_, receive), gradient = self._taps.pop(), gradients.pop()
            if gradient is not None:
                receive(gradient)
        return self._rows, self._factored

    def compute(
        self,
        parameter: TrackedParameter,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """See ``Uses``; a function of parameters and constants gives a derived parameter."""
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        alone = all(self._same_for_all(each) for each in tensors)
        if alone and func not in _NOT_DERIVED:
            return self._derive(parameter, func, args, kwargs)
        return super().compute(parameter, func, args, kwargs)

    def copies(self, parameter: Tensor | None) -> Tensor | None:
        """See ``Uses``."""
        if not isinstance(parameter, TrackedParameter):
            return None
        name = parameter.parameter_name
        if name not in self._copies:
            value = parameter.value.detach()
            self._copies[name] = value.expand(self.examples, *value.shape).requires_grad_()
            self._taps.append((self._copies[name], partial(self._add_rows, parameter)))
        return self._copies[name]

    def linear(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Compute ``F.linear``."""
        x = self.batch(input, weight, bias)
        if isinstance(weight, TrackedParameter) and weight.parameter_name not in self._sources:
            tokens = math.prod(x.shape[:-1]) // self.examples
            if not factors_are_cheaper(tokens, *weight.shape):
                copies = self.copies(weight), self.copies(bias)
                y: Tensor = layers.Linear.apply(
                    self.by_example(x), plain(weight), plain(bias), *copies
                )
                return y.reshape(*x.shape[:-1], -1)

        def receive(gradient: Tensor, features: Tensor) -> None:
            outputs = gradient.reshape(self.examples, -1, gradient.shape[-1])
            if isinstance(weight, TrackedParameter):
                inputs = features.reshape(self.examples, -1, features.shape[-1])
                name, shape = weight.parameter_name, weight.shape
                self._add(weight, OuterProducts(name, shape, inputs, outputs))
            if isinstance(bias, TrackedParameter):
                self._add_rows(bias, outputs.sum(1))

        return self._tap(F.linear(x, plain(weight), plain(bias)), x, receive)

    def conv2d(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] | str = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
    ) -> Tensor:
        """Compute ``F.conv2d``."""
        x = self.one_row_each(input, weight, bias)
        if isinstance(padding, str):
            x, padding = _explicit_padding(x, weight, padding, _pair(dilation))
        settings = _pair(stride), _pair(padding), _pair(dilation), groups

        standardized = (
            isinstance(weight, TrackedParameter) and weight.parameter_name in self._standardized
        )
        y = F.conv2d(x, plain(weight), None if standardized else plain(bias), *settings)
        # On a GPU, asking whether they can be used would cost more than computing them again.
        exact = y.device.type == "cpu" and y.dtype == sum_dtype(y)
        of_use = Convolutions("", plain(weight).shape, x, y, *settings).reads_responses
        keeps = standardized and exact and of_use
        responses, version = y.detach() if keeps else None, y._version
        if standardized and bias is not None:
            y = y + plain(bias)[:, None, None]

        def receive(gradient: Tensor, inputs: Tensor) -> None:
            if isinstance(weight, TrackedParameter):
                name, shape = weight.parameter_name, weight.shape
                same = responses is not None and responses._version == version
                kept = responses if same else None
                self._add(weight, Convolutions(name, shape, inputs, gradient, *settings, kept))
            if isinstance(bias, TrackedParameter):
                self._add_rows(bias, gradient.flatten(2).sum(2))

        return self._tap(y, x, receive)

    def embedding(
        self,
        input: Tensor,
        weight: Tensor,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Tensor:
        """Compute ``F.embedding``; indices of shape (1, tokens) are the same for all examples."""
        assert isinstance(weight, TrackedParameter)  # noqa: S101 (the only one that can be)
        if weight.parameter_name in self._sources or max_norm is not None or scale_grad_by_freq:
            raise self.refusal(weight, "is used by embedding() with special options")
        if input.dim() < 2 or input.shape[0] not in (1, self.examples):
            raise self.refusal(weight, f"is looked up with indices of shape {tuple(input.shape)}")
        indices = input.expand(self.examples, *input.shape[1:])

        def receive(gradient: Tensor, _: Tensor) -> None:
            outputs = gradient.flatten(1, -2)
            tokens = indices.flatten(1)
            if padding_idx is not None:
                padding = tokens == padding_idx % len(weight)
                outputs = outputs.masked_fill(padding[..., None], 0)
            self._factored.append(Lookups(weight.parameter_name, weight.shape, tokens, outputs))

        return self._tap(F.embedding(indices, weight.value, padding_idx), indices, receive)

    def standardize(self, weight: Tensor, gain: Tensor) -> Tensor:
        """Compute `standardize` of two parameters."""
        used = next(tracked_in(weight, gain))
        if not (isinstance(weight, TrackedParameter) and isinstance(gain, TrackedParameter)):
            raise self.refusal(used, "is used by standardize() with one that does not train")
        derived = self._derive(used, standardize, (weight, gain), {})
        epsilon = SMALLEST_SQUARES / weight[0].numel()
        self._standardized[derived.parameter_name] = Standardization(
            weight.value, gain.value, epsilon
        )
        return derived

    def _same_for_all(self, tensor: Tensor) -> bool:
        """Whether no example has an influence on a tensor."""
        if isinstance(tensor, TrackedParameter):
            return True
        return id(tensor) in self._constants or (
            tensor._base is not None and id(tensor._base) in self._constants
        )

    def _derive(
        self,
        parameter: TrackedParameter,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> TrackedParameter:
        """Compute a function of parameters alone; its result stands for them."""
        parents = list(tracked_in(*args, *kwargs.values()))
        args, kwargs = tree_map_only(TrackedParameter, plain, (args, kwargs))
        value = func(*args, **kwargs)
        if not isinstance(value, Tensor) or not value.requires_grad:
            raise self.refusal(parameter, f"is used by {func.__name__}()")
        name = f"{func.__name__}({', '.join(each.parameter_name for each in parents)})"
        name = f"{name} #{len(self._sources)}"
        self._sources[name] = {}
        for each in parents:
            itself = {each.parameter_name: each.value}
            self._sources[name] |= self._sources.get(each.parameter_name, itself)
        found = None
        if func is F.batch_norm:
            found = Standardization.by_batch_norm(*args, **kwargs)
        elif func in _RESHAPES:
            found = self._standardized.get(parents[0].parameter_name)
        if found is not None:
            self._standardized[name] = found
        return TrackedParameter.of(name, value, self)

    def _tap(self, y: Tensor, inputs: Tensor, receive: Callable[[Tensor, Tensor], None]) -> Tensor:
        """Arrange that ``receive`` gets the gradient of ``y`` together with ``inputs``."""
        inputs = inputs.detach()
        version = inputs._version

        def checked(gradient: Tensor) -> None:
            if inputs._version != version:
                raise UnsupportedModelError(
                    f"the input of shape {tuple(inputs.shape)} of a trainable layer is modified "
                    "in place after the layer: use the out-of-place operation"
                )
            receive(gradient, inputs)

        # The edge stays that of this output also if the model goes on to modify it in place.
        self._taps.append((get_gradient_edge(y), checked))
        return y

    def _add(self, weight: TrackedParameter, gradients: OuterProducts | Convolutions) -> None:
        """Add the gradients of a weight as they are cheaper to keep."""
        sources = self._sources.get(weight.parameter_name)
        standardized = self._standardized.get(weight.parameter_name)
        if sources is None:
            if isinstance(gradients, Convolutions) and not gradients.is_cheaper:
                self._add_rows(weight, gradients.rows())
            else:
                self._factored.append(gradients)
            return
        if isinstance(gradients, OuterProducts):
            self._factored.append(Derived(weight.value, sources, gradients))
            return
        closed_form = standardized is not None and gradients.groups == 1
        kept: Convolutions | ConvolutionRows = gradients
        if gradients.rows_are_smaller:
            summed = gradients.without_level() if closed_form else gradients
            kept = ConvolutionRows(gradients.name, summed.rows())
        if standardized is not None and closed_form:
            self._factored.append(Standardized(weight.value, sources, kept, standardized))
        else:
            self._factored.append(Derived(weight.value, sources, kept))

    def _add_rows(self, parameter: TrackedParameter, rows: Tensor) -> None:
        """Add per-example gradients of a parameter, or through a derived one to its sources."""
        sources = self._sources.get(parameter.parameter_name)
        gradients: Mapping[str, Tensor] = {parameter.parameter_name: rows}
        if sources is not None:
            through = torch.autograd.grad(
                parameter.value,
                list(sources.values()),
                rows.to(parameter.value.dtype),
                retain_graph=True,
                is_grads_batched=True,
            )
            gradients = dict(zip(sources, through, strict=True))
        for name, each in gradients.items():
            self._rows[name] = self._rows[name] + each if name in self._rows else each


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


def _explicit_padding(
    x: Tensor, weight: Tensor, padding: str, dilation: tuple[int, int]
) -> tuple[Tensor, int]:
    """Pad ``x`` as the padding "same" of a convolution asks; nothing is left to pad."""
    if padding == "same":
        rows, columns = (
            extent * (size - 1) for extent, size in zip(dilation, weight.shape[2:], strict=True)
        )
        x = F.pad(x, [columns // 2, columns - columns // 2, rows // 2, rows - rows // 2])
    return x, 0
