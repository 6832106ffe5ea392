"""Refuse networks in which a pass stores something of its examples.

Noise protects the sum of the gradients. Whatever else a pass writes gets none: running means, counters,
rows of an embedding that are scaled to a largest norm, weights that the first batch determines, the
last batch in an attribute. `check_passes` looks for it before the first step, on a copy, and `Watch`
afterwards in every call.
"""

import copy
import inspect
import random
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dpsweep.config.messages import brief, shorten
from dpsweep.gradients.refusals import UnsupportedModelError

Run = Callable[[nn.Module, Tensor], Tensor]
"""A pass through a network as it is used: forward, and backward where it trains; returns the outputs."""

Values = dict[str, Any]
"""Tensors and plain values by name."""

_Place = tuple[nn.Module, str]

# Attributes that every module has: what trains, buffers and layers are looked at by themselves.
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_PLAIN = bool | int | float | complex | str | bytes | None
# Rounding, in units of a tensor's precision and largest number.
_ROUNDING = 16


@contextmanager
def no_warnings() -> Iterator[None]:
    """Hide warnings of passes that only look: those that count will give them again."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@no_warnings()
def check_passes(model: nn.Module, run: Run, inputs: Tensor, others: Tensor) -> Tensor:
    """Refuse a network that keeps something from one pass to the next; it stays as it is.

    Three passes go through a copy: the inputs, others, and the inputs again. Afterwards parameters,
    buffers and the rest of ``state_dict()`` must be what they were, and other attributes what the first
    pass has left, whatever its inputs: a cache of constants may be filled.

    Args:
        model: in the mode in which it is used.
        run: the pass.
        inputs: of a few examples, like those that the network will see.
        others: of other examples.

    Returns:
        The outputs of the first pass.

    Raises:
        UnsupportedModelError: naming what a pass writes, or saying that it changes its inputs.
    """
    watch, kept = Watch(model), _kept(model)
    copied = copy_of(model)
    given = inputs.clone()
    start = _attributes(copied)
    look_ups: AbstractContextManager[Any] = (
        _RefuseLargestNorms(copied) if inputs.device.type == "cpu" else nullcontext()
    )
    with same_draws(inputs.device), look_ups:
        first = run(copied, given)
    if not _same(given, inputs):
        raise UnsupportedModelError(
            f"{type(model).__name__} changes its inputs in place, so that a second pass would read "
            "others: let it begin with inputs.clone(), or use operations that are not in place"
        )
    filled = _attributes(copied)
    written = []
    if _different(start, filled):
        written += _different(filled, _attributes(_after(model, run, others)))
    with same_draws(inputs.device), torch.no_grad():
        run(copied, others)
    with same_draws(inputs.device):
        again = run(copied, inputs.clone())
    written += _different(filled, _attributes(copied))
    left = _kept(copied)
    changed = _different(kept, left)
    if changed:
        rounded = all(_differ_by_rounding(kept.get(name), left.get(name)) for name in changed)
        # Merging adapters into a weight, and taking them out again, rounds it.
        if not rounded or _different(left, _kept(_after(model, run, others, others, others))):
            written += changed
    # A hook may know the network itself, whose copy is looked at.
    if touched := watch.written():
        written += touched
        watch.restore(copied)
    if written:
        raise _refusal(model, written)
    precision = torch.finfo(first.dtype).eps ** 0.5
    if not torch.allclose(first, again, rtol=precision, atol=precision, equal_nan=True):
        raise UnsupportedModelError(
            f"{type(model).__name__} gives other outputs when it sees the same inputs again, with the "
            "same random numbers: it keeps something of the examples outside its parameters, buffers "
            "and attributes, without noise. Remove that state"
        )
    return first


class Watch:
    """Notices what is written into the parameters and buffers of a network from now on.

    It asks only for the versions that torch counts: nothing waits for the device.
    """

    def __init__(self, model: nn.Module):
        """Look at a network as it is now."""
        self._model = model
        self._tensors = _tensors(model)
        self._marks = _marks(self._tensors)

    def written(self) -> list[str]:
        """Return the names of what was written, replaced or added."""
        tensors = _tensors(self._model)
        marks = _marks(tensors)
        if marks == self._marks:
            return []
        layers = {module: name for name, module in self._model.named_modules()}
        return [
            f"{layers[place[0]]}.{place[1]}".lstrip(".")
            for place, mark in marks.items()
            if mark != self._marks.get(place) and not self._rounded(place, tensors[place])
        ]

    def _rounded(self, place: _Place, tensor: Tensor) -> bool:
        """Whether a tensor was replaced by its like, as by adapters that are merged and taken out again."""
        before = self._tensors.get(place, tensor)
        return before is not tensor and _differ_by_rounding(before, tensor)

    def restore(self, copied: nn.Module) -> None:
        """Give what was written the values of a copy that was made before."""
        layers = {module: name for name, module in self._model.named_modules()}
        now = _marks(self._tensors)
        with torch.no_grad():
            for (module, key), tensor in self._tensors.items():
                if now[module, key] != self._marks[module, key]:
                    tensor.copy_(getattr(copied.get_submodule(layers[module]), key))

    def refuse(self) -> None:
        """Refuse the network if something was written.

        Raises:
            UnsupportedModelError: naming it.
        """
        if written := self.written():
            raise _refusal(self._model, written)


def copy_of(model: nn.Module) -> nn.Module:
    """Return a copy of a network, of which the original knows nothing.

    Raises:
        UnsupportedModelError: there can be none.
    """
    # Python's copy refuses tensors that are computed from others, such as old weight norms keep.
    with torch._C.DisableTorchFunctionSubclass():
        computed = {
            id(each): each.detach().as_subclass(Tensor).clone()
            for each in _walk(model).values()
            if isinstance(each, Tensor)
            and (not each.is_leaf or type(each) not in (Tensor, nn.Parameter))
        }
    try:
        return copy.deepcopy(model, computed)
    except Exception as error:  # of any kind: attributes may be anything
        raise UnsupportedModelError(
            f"{type(model).__name__} cannot be copied ({brief(error)}), so what its passes write is not "
            "known: keep files, locks and the like out of it"
        ) from error


@contextmanager
def same_draws(device: torch.device, seed: int = 0) -> Iterator[None]:
    """Draw from ``seed`` whatever is random inside; the global random states stay what they were."""
    python, legacy = random.getstate(), np.random.get_state()
    gpu = device.type == "cuda" and torch.cuda.is_available()
    try:
        with torch.random.fork_rng(devices=[device] if gpu else []):
            random.seed(seed)
            np.random.seed(seed)
            torch.default_generator.manual_seed(seed)
            if gpu:
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(seed)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)


class _RefuseLargestNorms(TorchFunctionMode):
    """Refuses look-ups that scale the rows they read, also while no row is long enough.

    On the CPU; elsewhere what a look-up has rewritten is found when passes are compared.
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        self._model = model

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in (F.embedding, F.embedding_bag) and kwargs.get("max_norm") is not None:
            names = [
                f"{name!r} "
                for name, each in self._model.named_parameters()
                if any(each is argument for argument in args)
            ]
            raise UnsupportedModelError(
                f"embedding {''.join(names)}is looked up with max_norm: that rewrites the rows of the "
                "tokens in a batch, without noise, so that they can be told from the others. Use "
                "max_norm=None"
            )
        return func(*args, **kwargs)


def _after(model: nn.Module, run: Run, *batches: Tensor) -> nn.Module:
    """Return a copy of a network that has seen some batches."""
    copied = copy_of(model)
    for each in batches:
        with same_draws(each.device):
            run(copied, each.clone())
    return copied


def _refusal(model: nn.Module, written: list[str]) -> UnsupportedModelError:
    names = shorten(repr(each) for each in dict.fromkeys(written))
    mode = (
        "Call model.eval(), or use layers that keep nothing"
        if any(each.training for each in model.modules())
        else "Use layers that keep nothing; what a first batch initialises, initialise with public inputs"
    )
    return UnsupportedModelError(
        f"a pass through {type(model).__name__} writes {names}, which would hold something of the private "
        f"examples without noise. {mode}"
    )


def _kept(model: nn.Module) -> Values:
    """Return parameters, buffers, and everything else in a network's ``state_dict()``."""
    found: Values = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, value in model.state_dict().items():
        found.setdefault(name, value)
    return _flat(found)


def _attributes(model: nn.Module) -> Values:
    """Other attributes, as they are now: not as they will be."""
    return {
        name: value.detach().clone() if isinstance(value, Tensor) else value
        for name, value in _walk(model).items()
    }


def _walk(model: nn.Module) -> Values:
    """Tensors and plain values among the attributes of layers and their classes, also inside of others."""
    seen = {id(module) for module in model.modules()}
    found: Values = {}
    for name, module in model.named_modules():
        own = {key: value for key, value in vars(module).items() if key not in _OF_EVERY_MODULE}
        found |= _flat(own, name and f"{name}.", seen)
    kinds = {kind for module in model.modules() for kind in type(module).__mro__}
    for kind in kinds.difference(nn.Module.__mro__):
        own = {key: value for key, value in vars(kind).items() if not key.startswith("__")}
        found |= _flat(own, f"{kind.__name__}.", seen)
    return found


def _flat(values: Mapping[str, Any], prefix: str = "", seen: set[int] | None = None) -> Values:
    """Return what containers and objects hold, by names such as ``layer.bank[3]``."""
    found: Values = {}
    seen = set() if seen is None else seen
    waiting: list[tuple[str, Any]] = [(f"{prefix}{key}", each) for key, each in values.items()]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, _PLAIN | Tensor):
            found[name] = value
        elif isinstance(value, np.ndarray | np.generic):
            found[name] = str(value.dtype), value.tobytes()
        elif id(value) in seen or isinstance(value, type | ModuleType) or inspect.isroutine(value):
            continue
        elif isinstance(value, Mapping):
            found[name] = len(value)
            waiting += [(f"{name}[{_key(key)}]", each) for key, each in value.items()]
        elif isinstance(value, set | frozenset):
            found[name] = sorted(map(_key, value))
        elif isinstance(value, list | tuple | deque):
            found[name] = len(value)
            waiting += [(f"{name}[{index}]", each) for index, each in enumerate(value)]
        elif hasattr(value, "__dict__"):
            waiting += [(f"{name}.{key}", each) for key, each in vars(value).items()]
        seen.add(id(value))
    return found


def _key(key: object) -> str:
    """A key without an address, which would differ between two copies."""
    return repr(key) if isinstance(key, _PLAIN | tuple) else type(key).__name__


def _different(first: Values, second: Values) -> list[str]:
    """Return the names of what two have not in common."""
    return [
        name
        for name in dict.fromkeys((*first, *second))
        if name not in first or name not in second or not _same(first[name], second[name])
    ]


def _same(first: Any, second: Any) -> bool:
    """Whether two values are the same bits, so that NaN is NaN."""
    if not isinstance(first, Tensor) or not isinstance(second, Tensor):
        return type(first) is type(second) and (first == second or repr(first) == repr(second))
    if (first.shape, first.dtype, first.device) != (second.shape, second.dtype, second.device):
        return False
    if first.is_meta or first is second:
        return True
    first, second = (_bits(each) for each in (first, second))
    return torch.equal(first, second)


def _bits(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    return tensor.to_dense().contiguous().reshape(-1).view(torch.uint8)


def _differ_by_rounding(first: Any, second: Any) -> bool:
    """Whether two tensors have the same numbers but for rounding."""
    if not isinstance(first, Tensor) or not isinstance(second, Tensor):
        return False
    if first.shape != second.shape or first.dtype != second.dtype or not first.is_floating_point():
        return _same(first, second)
    largest = first.detach().abs().nan_to_num(posinf=0).amax() if first.numel() else 0.0
    error = _ROUNDING * torch.finfo(first.dtype).eps * float(largest)
    return torch.allclose(first, second, rtol=0, atol=error, equal_nan=True)


def _tensors(model: nn.Module) -> dict[_Place, Tensor]:
    return {
        (module, key): tensor
        for module in model.modules()
        for group in (module._parameters, module._buffers)
        for key, tensor in group.items()
        if tensor is not None
    }


def _marks(tensors: Mapping[_Place, Tensor]) -> dict[_Place, tuple[int, int]]:
    """Identify a state of tensors: it changes when one is written or replaced. Keep them to compare."""
    return {
        place: (id(each), 0 if each.is_inference() else each._version)
        for place, each in tensors.items()
    }
