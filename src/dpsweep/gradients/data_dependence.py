"""Operations that choose, reorder, drop or merge the rows of a batch by their content.

The fast engines assign rows to examples by their place in a batch. That is wrong in a network that sorts
rows, packs sequences by length, leaves out tokens, or sends rows to experts. Made-up examples need not show
this, because their order may stay. So `data_dependent` follows which tensors depend on the values of the
inputs, and notes each operation that takes rows by such a tensor, whatever its values are. It runs before the
first step only.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest
from types import FrameType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Operations that take or write rows by an index.
_TAKING = re.compile("_unsafe_index|embedding|gather|index|index_select")
_WRITING = re.compile(
    "_index_put_impl|_unsafe_index_put|index_(add|copy|fill|put|reduce)|scatter|scatter_(add|reduce)"
)
# Others that choose rows by one argument only.
_CHOOSING = {
    **dict.fromkeys(("_embedding_bag", "_embedding_bag_forward_only"), "offsets"),
    "bucketize": "boundaries",
    "searchsorted": "sorted_sequence",
}
# Operations that keep rows apart, beside those that torch marks as `pointwise`. Any other operation that
# `_dimensions` does not know may merge or order all rows.
_WHOLE = re.compile(
    "_assert_async|_cudnn_rnn|_prelu_kernel|_thnn_fused_(gru|lstm)_cell|_to_copy|_unsafe_view|as_strided|cat|"
    "complex|constant_pad_nd|copy|fill|floor_divide|hardswish|log_sigmoid_forward|mkldnn_rnn_layer|polar|"
    "masked_fill|repeat|select_scatter|slice_scatter|stack|tril|triu"
)
# Operations that compute every row of the first dimension alone, by the beginning of their names.
_ROW_BY_ROW = re.compile(
    "_?adaptive_|avg_pool|channel_shuffle|col2im|convolution|grid_sampler|im2col|max_pool|mkldnn_|"
    "native_group_norm|pixel_|reflection_pad|replication_pad|_?upsample_"
)
_PRODUCTS = frozenset(("addmm", "addmv", "baddbmm", "bmm", "dot", "mm", "mv"))
# Operations that give numbers to Python, which may branch on them.
_READING = frozenset(("_local_scalar_dense", "allclose", "equal", "is_nonzero"))
_READING_BY_PYTHON = (
    *(Tensor.tolist, Tensor.numpy, Tensor.apply_, Tensor.__array__, Tensor.__dlpack__),
    *(Tensor.__deepcopy__, Tensor.__format__, Tensor.__repr__),
    *(Tensor.data_ptr, Tensor.storage, Tensor.untyped_storage),
)
# Functions whose second argument is read in C++.
_SPLITTING = torch.tensor_split, Tensor.tensor_split
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

    supports_higher_order_operators = True

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
        if isinstance(func, HigherOrderOperator):
            self.read(str(func), args)
            self._mark(found)
            return found
        name = func.overloadpacket.__name__.rstrip("_").removeprefix("_foreach_")
        schema = func._schema.arguments
        values = {each.name: each.default_value for each in schema}
        values |= dict(zip(values, args, strict=False)) | (kwargs or {})
        shaped = name.endswith("_like") or name.startswith("new_")
        # Random numbers may order rows too, and made-up examples may keep theirs.
        random = torch.Tag.nondeterministic_seeded in func.tags
        if random or (self._depends(values) and not shaped):
            view = any(each.alias_info and not each.alias_info.is_write for each in schema)
            whole = view or _WHOLE.fullmatch(name) or _is_pointwise(func, name)
            sizes = (
                [] if (whole and name not in _READING) or self.paused else self._sizes(name, values)
            )
            if sizes:
                self._note(name, sizes)
            written = [values[e.name] for e in schema if e.alias_info and e.alias_info.is_write]
            self._mark([found, written])
        return found

    def _sizes(self, name: str, values: dict[str, Any]) -> list[int]:
        """Return the sizes of the dimensions whose rows an operation treats by values of the inputs."""
        if name in _READING:
            return [self._examples]
        writes = bool(_WRITING.fullmatch(name))
        if writes or _TAKING.fullmatch(name):
            return self._indexed(values, writes=writes)
        if name in _CHOOSING:
            chosen = values.get(_CHOOSING[name])
            return [chosen.numel()] if chosen is not None and self._depends(chosen) else []
        dependent = [each for each in _tensors(values) if self._depends(each)]
        if name in _PRODUCTS:
            # The factors come last; the sum is over the last dimension of the first one.
            one, other = _tensors(values)[-2:]
            return [one.shape[-1]] if self._depends((one, other)) else []
        if any(each.is_nested for each in dependent):
            return [self._examples]
        return [each.shape[i] for each in dependent for i in _dimensions(name, values, each)]

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
        return any(_storage(each)[0] in self._dependent for each in _tensors(values))

    def _mark(self, values: object) -> None:
        self._dependent.update(map(_storage, _tensors(values)))

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
        if func in _SPLITTING:
            self._dependence.read(func.__name__, (args[1:], kwargs))
        # torch only checks that its numbers are below that of the classes.
        one_hot = func is F.one_hot and (len(args) > 1 or "num_classes" in kwargs)
        self._dependence.paused = one_hot
        try:
            return func(*args, **kwargs)
        finally:
            self._dependence.paused = False


def _is_pointwise(func: Any, name: str) -> bool:
    """Return whether each number of a result depends on one number of each argument."""
    # Forms that write in place are not marked.
    twin = getattr(getattr(torch.ops.aten, name, None), func._overloadname, func)
    return any(torch.Tag.pointwise in each.tags for each in (func, twin)) or name.startswith(
        "_foreach_"
    )


def _dimensions(name: str, values: dict[str, Any], tensor: Tensor) -> Iterable[int]:
    """Return along which dimensions an operation merges or orders numbers: all, unless it is known."""
    everything = range(-tensor.dim(), 0)
    if _ROW_BY_ROW.match(name):
        return everything[1:]
    if name.startswith("_scaled_dot_product"):
        return everything[-2:-1] if tensor is values["key"] else ()
    if "normalized_shape" in values:
        return everything[-len(values["normalized_shape"]) :]
    if "running_mean" in values:
        return [*everything[:1], *everything[2:]] if values.get("training") else ()
    given = values.get("dim", values.get("dims"))
    dimensions = [given] if isinstance(given, int) else given or everything
    return [each for each in dimensions if -tensor.dim() <= each < tensor.dim()]


def _tensors(values: object) -> list[Tensor]:
    return [each for each in tree_leaves(values) if isinstance(each, Tensor)]


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
