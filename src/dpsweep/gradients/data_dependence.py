"""Operations that choose, reorder, drop or merge the rows of a batch by their content.

The fast engines assign rows to examples by their place in a batch. That is wrong in a network that sorts
rows, packs sequences by length, leaves out tokens, or sends rows to experts. Made-up examples need not show
this, because their order may stay. So `data_dependent` follows which tensors depend on the values of the
inputs, and notes each operation that takes rows by such a tensor, whatever its values are. It runs before the
first step only.
"""

import sys
from collections.abc import Callable, Iterator
from itertools import zip_longest
from types import FrameType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Operations that take or write rows by an index.
_TAKING = frozenset(("_unsafe_index", "embedding", "gather", "index", "index_select"))
_WRITING = frozenset(
    [
        "_index_put_impl",
        "_unsafe_index_put",
        "index_add",
        "index_copy",
        "index_fill",
        "index_put",
        "index_reduce",
        "scatter",
        "scatter_add",
        "scatter_reduce",
    ]
)
# Others, with the arguments that determine which rows they take, or how many they return.
_CHOOSING = {
    **dict.fromkeys(("bincount", "histc", "nonzero", "nonzero_static"), ("self",)),
    **dict.fromkeys(("_unique", "_unique2", "unique_consecutive"), ("self",)),
    **dict.fromkeys(("masked_select", "masked_scatter", "_nested_tensor_from_mask"), ("mask",)),
    **dict.fromkeys(("put", "take"), ("index",)),
    **dict.fromkeys(("_embedding_bag", "_embedding_bag_forward_only"), ("offsets",)),
    "_pack_padded_sequence": ("lengths",),
    "bucketize": ("boundaries",),
    "repeat_interleave": ("repeats",),
    "searchsorted": ("sorted_sequence",),
    "segment_reduce": ("lengths", "offsets"),
}
# Operations along a dimension that leave every row whole.
_STRUCTURAL = frozenset(("cat", "select_scatter", "slice_scatter", "stack"))
# Operations that merge all rows if they get no dimension.
_REDUCING = frozenset(
    [
        "all",
        "amax",
        "amin",
        "aminmax",
        "any",
        "argmax",
        "argmin",
        "linalg_vector_norm",
        "max",
        "mean",
        "median",
        "min",
        "nanmedian",
        "nansum",
        "norm",
        "prod",
        "std",
        "std_mean",
        "sum",
        "var",
        "var_mean",
    ]
)
_PRODUCTS = frozenset(("addmm", "addmv", "baddbmm", "bmm", "dot", "mm", "mv"))
# Operations that give numbers to Python, which may branch on them.
_READING = frozenset(("_local_scalar_dense", "allclose", "equal", "is_nonzero"))
_READING_BY_PYTHON = Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__dlpack__
# Modules that ask whether texts have padding, to leave out a mask of ones. Only rounding changes.
_ONLY_ROUNDING = {"transformers.masking_utils", "transformers.modeling_attn_mask_utils"}


def data_dependent(run: Callable[[Tensor], object], inputs: Tensor) -> str | None:
    """Return the first operation that treats rows of a batch by their content, None if there is none.

    Two passes, one with an example less, show which dimensions are those of the examples: sizes differ.

    >>> data_dependent(lambda x: x[x.sum(1).argsort()], torch.rand(3, 2))
    'sort'
    >>> data_dependent(lambda x: x.sort(dim=1).values, torch.rand(3, 2))

    Args:
        run: a forward pass of a network.
        inputs: of two or more examples.
    """
    notes = []
    for some in (inputs.clone(), inputs[:-1].clone()):
        with _Dependence(some) as dependence, _ByPython(dependence):
            run(some)
        notes.append(dependence.notes)
    different = (one or other for one, other in zip_longest(*notes) if one != other)
    return next((name for name, _ in different), None)


class _Dependence(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that follows which tensors depend on the values of the inputs.

    Attributes:
        notes: operations that treat rows by such values, with the sizes of the dimensions of these rows.
        paused: whether no operation is noted now.
    """

    def __init__(self, inputs: Tensor):
        super().__init__()  # type: ignore[no-untyped-call]
        self.notes: list[tuple[str, list[int]]] = []
        self.paused = False
        self._examples = len(inputs)
        # By address; storages are kept, so that no other one gets the same address.
        self._dependent: dict[int, object] = {}
        self._mark(inputs)

    def read(self, name: str, values: object) -> None:
        """Note that Python reads values, if they depend on the inputs."""
        if self._depends(values):
            self._note(name, [self._examples])

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        schema = func._schema.arguments
        values = {each.name: each.default_value for each in schema}
        values |= dict(zip(values, args, strict=False)) | (kwargs or {})
        name = func.overloadpacket.__name__.rstrip("_")
        if self._depends(values) and not name.endswith("_like") and not name.startswith("new_"):
            view = any(each.alias_info and not each.alias_info.is_write for each in schema)
            sizes = [] if view or self.paused else self._sizes(name, values)
            if sizes:
                self._note(name, sizes)
            written = [values[e.name] for e in schema if e.alias_info and e.alias_info.is_write]
            self._mark([found, written])
        return found

    def _sizes(self, name: str, values: dict[str, Any]) -> list[int]:
        """Return the sizes of the dimensions whose rows an operation treats by values of the inputs."""
        if name in _READING:
            return [self._examples]
        if name in _TAKING | _WRITING:
            return self._indexed(values, writes=name in _WRITING)
        if name in _CHOOSING:
            chosen: list[Any] = [values.get(each) for each in _CHOOSING[name]]
            return [each.numel() for each in chosen if self._depends(each)]
        return self._along(name, values)

    def _along(self, name: str, values: dict[str, Any]) -> list[int]:
        """Return the sizes of the dimensions along which an operation merges or orders numbers."""
        first, *others = (each for each in tree_leaves(values) if isinstance(each, Tensor))
        dimensions = values.get("dim")
        if name in _PRODUCTS:
            # The factors come last; the sum is over the last dimension of the first one.
            one, other = (first, *others)[-2:]
            return [one.shape[-1]] if self._depends(one) and self._depends(other) else []
        if not self._depends(first) or not first.dim() or name in _STRUCTURAL:
            return []
        if dimensions is None or dimensions == []:
            return list(first.shape) if name in _REDUCING and "other" not in values else []
        return [first.shape[each] for each in tree_leaves(dimensions)]

    def _indexed(self, values: dict[str, Any], *, writes: bool) -> list[int]:
        """Return the sizes of the dimensions in which an index depends on the inputs."""
        table: Tensor = values["self"] if "self" in values else values["weight"]
        dimension = values.get("dim")
        given = values["indices"] if "indices" in values else values["index"]
        indices: list[Any] = given if isinstance(given, list) else [given]
        if dimension is not None:
            indices = [None] * (dimension % max(table.dim(), 1)) + indices
        sizes: list[int] = []
        place, everywhere = 0, True
        for index in indices:
            mask = index is not None and index.dtype in (torch.bool, torch.uint8)
            end = place + (index.dim() if mask else 1)
            if self._depends(index):
                sizes += table.shape[place:end]
            elif index is not None:
                everywhere = False
            place = end
        if writes and sizes and everywhere:
            # Rows of the examples may go to places that are not theirs.
            aligned = dimension is not None and index.dim() == table.dim()
            sizes.append(index.shape[dimension] if aligned and index.dim() else index.numel())
        return sizes

    def _depends(self, values: object) -> bool:
        tensors = (each for each in tree_leaves(values) if isinstance(each, Tensor))
        return any(_storage(each)[0] in self._dependent for each in tensors)

    def _mark(self, values: object) -> None:
        tensors = (each for each in tree_leaves(values) if isinstance(each, Tensor))
        self._dependent.update(map(_storage, tensors))

    def _note(self, name: str, sizes: list[int]) -> None:
        if not _ONLY_ROUNDING.intersection(_callers()):
            self.notes.append((name, sizes))


class _ByPython(TorchFunctionMode):
    """A mode that tells `_Dependence` about functions that it does not see."""

    def __init__(self, dependence: _Dependence):
        super().__init__()
        self._dependence = dependence

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _READING_BY_PYTHON:
            self._dependence.read(func.__name__, args)
        # torch only checks that its numbers are below that of the classes.
        one_hot = func is F.one_hot and (len(args) > 1 or "num_classes" in kwargs)
        self._dependence.paused = one_hot
        try:
            return func(*args, **kwargs)
        finally:
            self._dependence.paused = False


def _storage(tensor: Tensor) -> tuple[int, object]:
    """Return an address that all views of a tensor share, and what must live to keep it."""
    try:
        storage = tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # of sparse and nested tensors
        return id(tensor), tensor
    return storage._cdata, storage


def _callers() -> Iterator[str]:
    """Yield the names of the modules of all calling functions."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        yield frame.f_globals.get("__name__", "")
        frame = frame.f_back
