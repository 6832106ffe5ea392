"""A simulated GPU on the CPU, for which mixing devices and waiting for the device are errors.

All tensors are on the CPU. Some are marked, by their storage, as on the device: tensors that were
created there, copied there, or computed from such tensors. Kernels, memory and rounding of a real GPU
are not simulated.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._C import _functorch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
_FACTORIES = (
    *("arange", "as_tensor", "empty", "eye", "full", "linspace", "ones", "rand", "randint"),
    *("randn", "randperm", "tensor", "zeros"),
    *("empty_like", "full_like", "ones_like", "rand_like", "randn_like", "zeros_like"),
)
_aten = torch.ops.aten
_COPIES = {_aten.copy_.default, _aten._to_copy.default, _aten.set_.source_Storage}
_INDEXING = {_aten.index.Tensor, _aten.index_put_.default}
_WAITS = {_aten._local_scalar_dense.default, _aten.nonzero.default, _aten.equal.default} | {
    *(_aten.masked_select.default, _aten._unique2.default, _aten.unique_dim.default),
}
# These do not accept numbers of the CPU together with tensors of the device.
_ALL_THERE = {_aten.stack.default, _aten.cat.default}


class MixedDevicesError(Exception):
    """An operation on tensors of both the CPU and the device."""


class WaitedError(Exception):
    """An operation for which the CPU would wait for the device."""


class PretendedGpu:
    """The tensors that are on the device, and those in pinned memory.

    Attributes:
        may_wait: whether the CPU may wait for the device at present.
    """

    def __init__(self) -> None:
        self.may_wait = True
        self._marked: dict[str, dict[int, StorageWeakRef]] = {"device": {}, "pinned": {}}

    def mark(self, tensor: Tensor, where: str = "device") -> Tensor:
        storage = _unwrapped(tensor).untyped_storage()
        self._marked[where][storage._cdata] = StorageWeakRef(storage)
        return tensor

    def forget(self, tensor: Tensor) -> Tensor:
        self._marked["device"].pop(_unwrapped(tensor).untyped_storage()._cdata, None)
        return tensor

    def holds(self, tensor: Tensor, where: str = "device") -> bool:
        found = self._marked[where].get(_unwrapped(tensor).untyped_storage()._cdata)
        return found is not None and not found.expired()

    def wait(self, what: object) -> None:
        if not self.may_wait:
            raise WaitedError(str(what))

    @contextmanager
    def pretended(self, free: int = 2**40) -> Iterator[None]:
        """Simulate a GPU within this context, with so much free memory."""
        generator, pin = torch.Generator, Tensor.clone
        numpy, tolist = Tensor.numpy, Tensor.tolist

        def to_numpy(tensor: Tensor, **options: Any) -> Any:
            if self.holds(tensor):
                raise MixedDevicesError("numpy() of a tensor on the device")
            return numpy(tensor, **options)

        def to_list(tensor: Tensor) -> Any:
            if self.holds(tensor):
                self.wait("tolist() of a tensor on the device")
            return tolist(tensor)

        with pytest.MonkeyPatch.context() as patch:
            for name in _FACTORIES:
                patch.setattr(torch, name, self._creating(getattr(torch, name)))
            for name, value in {
                "device": property(lambda tensor: CUDA if self.holds(tensor) else CPU),
                "is_cuda": property(self.holds),
                "to": self._moving(_without_modes(Tensor.to)),
                "cpu": lambda tensor: tensor.to(CPU),
                "numpy": to_numpy,
                "tolist": to_list,
                "pin_memory": lambda tensor: self.mark(pin(tensor), "pinned"),
            }.items():
                patch.setattr(Tensor, name, value)
            patch.setattr(torch, "Generator", lambda device="cpu": generator())
            patch.setattr(torch.cuda, "synchronize", lambda *_: None)
            patch.setattr(torch.cuda, "mem_get_info", lambda *_: (free, 2**40))
            patch.setattr(torch.cuda, "get_device_name", lambda *_: "pretended")
            with _Operations(self):
                yield

    def _creating(self, create: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def created(*arguments: Any, **options: Any) -> Tensor:
            if not _is_cuda(options.get("device")):
                return create(*arguments, **options)
            return self.mark(create(*arguments, **options | {"device": CPU}))

        return created

    def _moving(self, move: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def moved(tensor: Tensor, *arguments: Any, **options: Any) -> Tensor:
            there = self.holds(tensor)
            named = [each for each in (*arguments, options.get("device")) if _is_device(each)]
            arguments = tuple(CPU if _is_device(each) else each for each in arguments)
            options |= {"device": CPU} if _is_device(options.get("device")) else {}
            if not named or _is_cuda(named[0]) == there:
                return move(tensor, *arguments, **options)
            if not (options.get("non_blocking") and self.holds(tensor, "pinned")):
                self.wait(f"copy of a tensor of shape {tuple(tensor.shape)} to {named[0]}")
            copied = move(tensor, *arguments, **options | {"copy": True})
            return self.forget(copied) if there else self.mark(copied)

        return moved


class _Operations(TorchDispatchMode):
    """A check of every operation, including those of backward passes, before it is computed."""

    def __init__(self, gpu: PretendedGpu) -> None:
        super().__init__()
        self._gpu = gpu

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        there = [self._gpu.holds(each) for each in given]
        if any(there) and func not in _COPIES:
            self._check(func, args, given, there)
        if func is _aten.copy_.default and there[0] != there[1]:
            self._gpu.wait(func)
        found = func(*args, **(kwargs or {}))
        if there[0] if func is _aten.copy_.default else any(there):
            for each in tree_leaves(found):
                if isinstance(each, Tensor):
                    self._gpu.mark(each)
        return found

    def _check(
        self, func: Any, args: tuple[Any, ...], given: list[Tensor], there: list[bool]
    ) -> None:
        asked = tree_leaves(args[1]) if func in _INDEXING and there[0] else []
        indices = [each for each in asked if isinstance(each, Tensor)]
        elsewhere = [
            each
            for each, marked in zip(given, there, strict=True)
            if not marked and (each.dim() or func in _ALL_THERE)
        ]
        # Most kernels accept numbers of the CPU, and torch copies indices itself.
        if not all(any(each is index for index in indices) for each in elsewhere):
            shapes = [tuple(each.shape) for each in elsewhere]
            raise MixedDevicesError(f"{func}: found tensors of shapes {shapes} on the CPU")
        # Only the device can count the numbers that a mask selects.
        if func in _WAITS or elsewhere or any(each.dtype == torch.bool for each in indices):
            self._gpu.wait(func)


def _unwrapped(tensor: Tensor) -> Tensor:
    """Return the tensor behind wrappers of torch.func, which have no storage."""
    while _functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor


def _without_modes(method: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a method of tensors that modes do not see: they would call the patched method again."""

    def called(*arguments: Any, **options: Any) -> Tensor:
        with torch._C.DisableTorchFunction():
            return method(*arguments, **options)

    return called


def _is_device(value: Any) -> bool:
    return isinstance(value, str | torch.device)


def _is_cuda(value: Any) -> bool:
    return _is_device(value) and torch.device(value).type == "cuda"
