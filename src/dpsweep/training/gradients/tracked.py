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
    inputs whose first dimension is the example.
    """

    engine: ClassVar[str]
    functions: ClassVar[Mapping[Any, str]] = {
        F.layer_norm: "layer_norm",
        F.group_norm: "group_norm",
        F.linear: "linear",
        Tensor.expand: "expand",
        Tensor.add: "add",
        torch.add: "add",
    }

    def __init__(self, examples: int):
        self.examples = examples

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

        Raises:
            UnsupportedModelError: if there is no rule for it.
        """
        if func in self.functions:
            return getattr(self, self.functions[func])(*args, **kwargs)
        raise self.refusal(parameter, f"is used by {getattr(func, '__name__', func)}()")

    def refusal(self, parameter: Tensor | None, use: str) -> UnsupportedModelError:
        """Return the error for an impossible use."""
        name = parameter.parameter_name if isinstance(parameter, TrackedParameter) else "?"
        return UnsupportedModelError(
            f"trainable parameter {name!r} {use}, for which engine {self.engine!r} has no "
            "per-example gradient: freeze it, or choose another engine"
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
        x = self.batch(input, weight, bias).to(_dtype(weight, bias))
        copies = self.copies(weight), self.copies(bias)
        shape = list(normalized_shape)
        return cast(
            Tensor, layers.LayerNorm.apply(x, plain(weight), plain(bias), *copies, shape, eps)
        )

    def group_norm(
        self,
        input: Tensor,
        num_groups: int,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        """Compute ``F.group_norm``, in the parameters' dtype."""
        x = self.batch(input, weight, bias).to(_dtype(weight, bias))
        copies = self.copies(weight), self.copies(bias)
        return cast(
            Tensor, layers.GroupNorm.apply(x, plain(weight), plain(bias), *copies, num_groups, eps)
        )

    def expand(self, parameter: Tensor, *sizes: Any) -> Tensor:
        """Compute ``parameter.expand(examples, ...)``, as models do with a class token."""
        shape = sizes if isinstance(sizes[0], int) else tuple(sizes[0])
        if len(shape) != parameter.dim() or shape[0] != self.examples:
            raise self.refusal(parameter, f"is expanded to {shape}, not to the examples")
        return self._batched(parameter).expand(shape)

    def add(self, input: Tensor, other: Tensor) -> Tensor:
        """Compute the sum of a batch and a parameter, as models do with position embeddings."""
        if isinstance(input, TrackedParameter):
            input, other = other, input
        return self.batch(input, other) + self._batched(other)

    def batch(self, x: Tensor, *parameters: Tensor | None) -> Tensor:
        """Return ``x``, an input that meets parameters, if its rows are the examples."""
        if isinstance(x, TrackedParameter):
            raise self.refusal(x, "meets another parameter")
        if x.shape[0] != self.examples:
            used = next(tracked_in(*parameters))
            raise self.refusal(
                used, f"meets an input of shape {tuple(x.shape)} for {self.examples} examples"
            )
        return x

    def _batched(self, parameter: Tensor) -> Tensor:
        """Return the copies of a parameter of shape (1, ...) in the shape (examples, ...)."""
        if parameter.shape[0] != 1:
            raise self.refusal(parameter, f"of shape {tuple(parameter.shape)} is broadcast")
        copies = self.copies(parameter)
        assert copies is not None  # noqa: S101 (it is tracked)
        return copies.flatten(0, 1)


def _dtype(weight: Tensor | None, bias: Tensor | None) -> torch.dtype:
    parameter = weight if weight is not None else bias
    assert parameter is not None  # noqa: S101 (one of them is tracked)
    return parameter.dtype
