"""Parameters that know how they are used: how the engines see into any model without hooks.

During a forward pass every trainable parameter is replaced by a `TrackedParameter`. Whatever
torch function the model hands it to, `Uses` either computes that function in a way that yields
per-example gradients, or refuses it. So a layer is supported because of what it computes, not
because of its class, and no use of a parameter can go unnoticed.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from dpsweep.training.gradients import layers
from dpsweep.training.gradients.interface import UnsupportedModelError

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
# Functions that combine their arguments number by number, after broadcasting them.
_ELEMENTWISE: frozenset[Any] = frozenset(
    getattr(namespace, name)
    for name in ("add", "addcmul", "div", "mul", "sub", "true_divide")
    for namespace in (torch, Tensor)
) | {Tensor.add_, Tensor.mul_, Tensor.__rsub__, Tensor.__rtruediv__}


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
        return parameter.uses.compute(parameter, func, args, kwargs)


def tracked_in(*values: Any) -> Iterator[TrackedParameter]:
    """Find the tracked parameters among the arguments of a torch function."""
    for value in values:
        if isinstance(value, TrackedParameter):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from tracked_in(*value)


_Value = TypeVar("_Value", Tensor, Tensor | None)


def plain(value: _Value) -> _Value:
    """Return the tensor behind a tracked parameter; other values as they are."""
    return value.value if isinstance(value, TrackedParameter) else value


class Uses:
    """The uses of the trainable parameters in one forward pass over ``examples`` examples.

    The methods named in ``functions`` compute torch functions, with torch's own signatures, for
    batches: tensors whose first dimension is the example. It may also have several rows for each
    example, one example after the other, as where a model cuts its images into windows.
    """

    engine: ClassVar[str]
    functions: ClassVar[Mapping[Any, str]] = {
        F.layer_norm: "layer_norm",
        F.group_norm: "group_norm",
        F.rms_norm: "rms_norm",
        F.linear: "linear",
        F.scaled_dot_product_attention: "attention",
        Tensor.expand: "expand",
        Tensor.repeat: "repeat",
    }

    def __init__(self, examples: int, layers: Mapping[str, str]):
        """Take the number of examples, and the kind of layer of each trainable parameter."""
        self.examples = examples
        self._layers = layers

    def copies(self, parameter: Tensor | None) -> Tensor | None:
        """Return the copies of a tracked parameter: shape (examples, *shape), one an example.

        None stands for a parameter that is absent or does not train.
        """
        raise NotImplementedError

    def linear(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Compute ``F.linear``."""
        raise NotImplementedError

    def compute(
        self,
        parameter: TrackedParameter,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Compute ``func``, one of whose arguments is ``parameter``.

        Args:
            parameter: the first tracked one among the arguments.
            func: a function of torch.
            args: its positional arguments.
            kwargs: its other arguments.

        Raises:
            UnsupportedModelError: if there is no rule for it.
        """
        if func in _ELEMENTWISE:
            return self._elementwise(parameter, func, args, kwargs)
        if func in self.functions:
            return getattr(self, self.functions[func])(*args, **kwargs)
        raise self.refusal(parameter, f"is used by {getattr(func, '__name__', func)}()")

    def refusal(self, parameter: Tensor | None, use: str) -> UnsupportedModelError:
        """Return the error for an impossible use."""
        name = parameter.parameter_name if isinstance(parameter, TrackedParameter) else "?"
        layer = f" of a {self._layers[name]}" if name in self._layers else ""
        return UnsupportedModelError(
            f"trainable parameter {name!r}{layer} {use}, for which engine {self.engine!r} has no "
            "per-example gradient; engine auto takes one that has"
        )

    def layer_norm(
        self,
        input: Tensor,
        normalized_shape: list[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        """Compute ``F.layer_norm``, in the parameters' dtype."""
        x = self.by_example(self.batch(input, weight, bias)).to(_dtype(weight, bias))
        copies = self.copies(weight), self.copies(bias)
        shape = list(normalized_shape)
        y: Tensor = layers.LayerNorm.apply(x, plain(weight), plain(bias), *copies, shape, eps)
        return y.reshape(input.shape)

    def rms_norm(
        self,
        input: Tensor,
        normalized_shape: list[int],
        weight: Tensor | None = None,
        eps: float | None = None,
    ) -> Tensor:
        """Compute ``F.rms_norm``."""
        x = self.batch(input, weight)
        return F.rms_norm(x, list(normalized_shape), None, eps) * self.broadcast(weight, x)

    def group_norm(
        self,
        input: Tensor,
        num_groups: int,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        """Compute ``F.group_norm``, in the parameters' dtype."""
        x = self.one_row_each(input, weight, bias).to(_dtype(weight, bias))
        copies = self.copies(weight), self.copies(bias)
        return cast(
            Tensor, layers.GroupNorm.apply(x, plain(weight), plain(bias), *copies, num_groups, eps)
        )

    def attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        *settings: Any,
        **options: Any,
    ) -> Tensor:
        """Compute ``F.scaled_dot_product_attention`` with a bias that trains."""
        for each in (query, key, value):
            if isinstance(each, TrackedParameter):
                raise self.refusal(each, "is a query, key or value that all examples share")
        bias = self.broadcast(attn_mask, self.batch(query, attn_mask))
        return F.scaled_dot_product_attention(query, key, value, bias, *settings, **options)

    def expand(self, parameter: Tensor, *sizes: Any) -> Tensor:
        """Compute ``parameter.expand(rows, ...)``, as models do with a class token."""
        shape = sizes if isinstance(sizes[0], int) else tuple(sizes[0])
        rows = shape[0]
        if len(shape) != parameter.dim() or rows < 1 or rows % self.examples:
            raise self.refusal(parameter, f"is expanded to {shape}, not to the examples")
        return self._copies_of_rows(parameter, len(shape), rows).expand(shape)

    def repeat(self, parameter: Tensor, *sizes: Any) -> Tensor:
        """Compute ``parameter.repeat(rows, 1, ...)``."""
        times = sizes if isinstance(sizes[0], int) else tuple(sizes[0])
        if any(each != 1 for each in times[1:]):
            raise self.refusal(parameter, f"is repeated {times} times")
        return self.expand(parameter, times[0], *[-1] * (len(times) - 1))

    def _elementwise(
        self,
        parameter: TrackedParameter,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Tensor:
        """Compute a batch with parameters, number by number: biases, scales, positions."""
        batches = [
            each
            for each in (*args, *kwargs.values())
            if isinstance(each, Tensor) and not isinstance(each, TrackedParameter) and each.dim()
        ]
        if not batches or any(each.dim() != batches[0].dim() for each in batches):
            raise self.refusal(parameter, f"is used by {func.__name__}() without a batch")
        for x in batches:
            self.batch(x, parameter)

        def with_copies(value: Any) -> Any:
            if isinstance(value, TrackedParameter):
                return self.broadcast(value, batches[0])
            return value

        result: Tensor = func(
            *(with_copies(each) for each in args),
            **{name: with_copies(each) for name, each in kwargs.items()},
        )
        return result

    def batch(self, x: Tensor, *parameters: Tensor | None) -> Tensor:
        """Return ``x``, a tensor that meets parameters, if its rows can be those of examples."""
        if isinstance(x, TrackedParameter):
            raise self.refusal(x, "meets another parameter")
        if x.dim() == 0 or x.shape[0] == 0 or x.shape[0] % self.examples:
            used = next(tracked_in(*parameters))
            raise self.refusal(
                used, f"meets an input of shape {tuple(x.shape)} for {self.examples} examples"
            )
        return x

    def one_row_each(self, x: Tensor, *parameters: Tensor | None) -> Tensor:
        """Return ``x`` like ``batch``, if it has one row for each example."""
        if self.batch(x, *parameters).shape[0] != self.examples:
            used = next(tracked_in(*parameters))
            raise self.refusal(
                used, f"meets several rows for each example, an input of shape {tuple(x.shape)},"
            )
        return x

    def by_example(self, x: Tensor) -> Tensor:
        """Return a batch in the shape (examples, ...): rows of an example become a dimension."""
        if x.shape[0] == self.examples:
            return x
        return x.reshape(self.examples, -1, *x.shape[1:])

    def broadcast(self, parameter: Tensor | None, x: Tensor) -> Tensor:
        """Return the copies of a parameter in a shape that meets the batch ``x`` elementwise."""
        assert isinstance(parameter, TrackedParameter)  # noqa: S101
        return self._copies_of_rows(parameter, x.dim(), x.shape[0])

    def _copies_of_rows(self, parameter: Tensor, dimensions: int, rows: int) -> Tensor:
        """Return the copy that belongs to each row of a batch, with so many dimensions."""
        shape = parameter.shape[1:] if parameter.dim() == dimensions else parameter.shape
        if parameter.dim() > dimensions or (parameter.dim() == dimensions and len(parameter) != 1):
            raise self.refusal(
                parameter, f"of shape {tuple(parameter.shape)} has a row for each row of a batch"
            )
        copies = self.copies(parameter)
        assert copies is not None  # noqa: S101 (it is tracked)
        alike = [1] * (dimensions - 1 - len(shape))
        if rows == self.examples:
            return copies.reshape(rows, *alike, *shape)
        copies = copies.reshape(self.examples, 1, *alike, *shape)
        return copies.expand(-1, rows // self.examples, *copies.shape[2:]).flatten(0, 1)


def _dtype(weight: Tensor | None, bias: Tensor | None) -> torch.dtype:
    parameter = weight if weight is not None else bias
    assert parameter is not None  # noqa: S101 (one of them is tracked)
    return parameter.dtype
