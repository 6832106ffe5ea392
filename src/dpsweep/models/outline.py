"""Passes through a network on torch's device ``meta``, in which integers keep their values.

A network on ``meta`` has shapes only, so a pass is cheap at any size. But ``meta`` alone does not detect
that a text has more positions than the network has embeddings. So tokens, masks and positions keep their
values here; only results computed with the network's parameters have none.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten

_META = torch.device("meta")
_aten: Any = torch.ops.aten
# They set initial values, which a tensor on `meta` does not have. Outlines without them take half the time.
_FILLS = {
    getattr(_aten, name)
    for name in ("normal_", "uniform_", "fill_", "zero_", "mul_", "add_", "clamp_", "erfinv_")
}


class Outline(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode in which a network on ``meta`` takes inputs on the CPU, and checks its look-ups.

    Make the network in this mode too, so that its integer buffers have values.

    Raises:
        IndexError: a look-up of a row that the table does not have.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run an operation on the CPU if none of its tensors is on ``meta``, otherwise on ``meta``."""
        kwargs = kwargs or {}
        leaves, form = tree_flatten((args, kwargs))
        tensors = [each for each in leaves if isinstance(each, Tensor)]
        if not any(each.is_meta for each in tensors):
            if _of_integers(func, tensors, kwargs.get("dtype")):
                leaves = [torch.device("cpu") if each == _META else each for each in leaves]
            args, kwargs = tree_unflatten(leaves, form)
            return func(*args, **kwargs)
        if func.overloadpacket in _FILLS and len(tensors) == 1:
            return args[0]
        if func is _aten.embedding.default:
            _check_rows(len(args[0]), args[1])
        if func is _aten.index.Tensor:
            for size, rows in zip(args[0].shape, args[1], strict=False):
                if rows is not None and rows.dtype is not torch.bool:
                    _check_rows(size, rows, -size)
            leaves, form = tree_flatten(((args[0], _places(args[1])), {}))
        args, kwargs = tree_unflatten(
            [each.to(_META) if isinstance(each, Tensor) else each for each in leaves], form
        )
        return func(*args, **kwargs)


def asks_for_values(error: Exception) -> bool:
    """Return whether a network on ``meta`` failed because it reads a value."""
    return isinstance(error, RuntimeError) and "meta" in str(error).lower()


def _of_integers(func: Any, tensors: list[Tensor], dtype: torch.dtype | None) -> bool:
    """Return whether an operation makes or moves integers, such as positions of tokens."""
    if tensors:
        return not any(each.is_floating_point() for each in tensors)
    counts = dtype is None and func.overloadpacket is _aten.arange
    return counts or (dtype is not None and not dtype.is_floating_point)


def _check_rows(size: int, rows: Tensor, first: int = 0) -> None:
    if not rows.is_meta and rows.numel() and not first <= int(rows.min()) <= int(rows.max()) < size:
        raise IndexError(f"rows {int(rows.min())} to {int(rows.max())} of a table with {size}")


def _places(indices: list[Tensor | None]) -> list[Tensor | None]:
    """Replace masks by the indices that they select, whose number ``meta`` cannot compute."""
    found: list[Tensor | None] = []
    for each in indices:
        if each is None or each.is_meta or each.dtype is not torch.bool:
            found.append(each)
        else:
            found += each.nonzero(as_tuple=True)
    return found
