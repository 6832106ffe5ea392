"""A device of type cuda that is the CPU: what mixes devices, or waits for one, is an error.

Tensors are those of the CPU. Some are marked, by their storage, as lying on the device: what was asked
for there, what was copied there, and what was computed of these. Nothing is known of kernels, memory
and numbers of a real GPU.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
_aten = torch.ops.aten
_COPIES = {_aten.copy_.default, _aten._to_copy.default, _aten.set_.source_Storage}
_WAITS = {_aten._local_scalar_dense.default, _aten.nonzero.default, _aten.equal.default}
_INDEXING = {_aten.index.Tensor, _aten.index_put_.default}


class MixedDevicesError(Exception):
    """An operation has met tensors of the CPU and of the device."""


class WaitedError(Exception):
    """The CPU would wait for the device."""


class PretendedGpu:
    """Which tensors lie on the device, and which lie in pinned memory.

    Attributes:
        may_wait: whether the CPU may wait for it at present.
    """

    def __init__(self) -> None:
        self.may_wait = True
        self._marked: dict[str, dict[int, StorageWeakRef]] = {"device": {}, "pinned": {}}

    def mark(self, tensor: Tensor, where: str = "device") -> Tensor:
        storage = tensor.untyped_storage()
        self._marked[where][storage._cdata] = StorageWeakRef(storage)
        return tensor

    def holds(self, tensor: Tensor, where: str = "device") -> bool:
        storage = tensor.untyped_storage()
        found = self._marked[where].get(storage._cdata)
        return found is not None and not found.expired()

    def forget(self, tensor: Tensor) -> Tensor:
        self._marked["device"].pop(tensor.untyped_storage()._cdata, None)
        return tensor

    def wait(self, what: object) -> None:
        if not self.may_wait:
            raise WaitedError(str(what))

    @contextmanager
    def pretended(self, free: int = 2**40) -> Iterator[None]:
        """Pretend within this context, with so much free memory."""
        with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
            generator = torch.Generator
            patch.setattr(torch, "Generator", lambda device="cpu": generator())
            patch.setattr(torch.cuda, "synchronize", lambda *_: None)
            patch.setattr(torch.cuda, "mem_get_info", lambda *_: (free, 2**40))
            patch.setattr(torch.cuda, "get_device_name", lambda *_: "pretended")
            stack.enter_context(_Operations(self))
            stack.enter_context(_Questions(self))
            yield


class _Operations(TorchDispatchMode):
    """Every operation, those of backward passes included, before it is computed."""

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
        if any(there) if func is not _aten.copy_.default else there[0]:
            tree_map(lambda each: self._gpu.mark(each) if isinstance(each, Tensor) else None, found)
        return found

    def _check(
        self, func: Any, args: tuple[Any, ...], given: list[Tensor], there: list[bool]
    ) -> None:
        asked = tree_leaves(args[1]) if func in _INDEXING and there[0] else []
        indices = [each for each in asked if isinstance(each, Tensor)]
        elsewhere = [
            each for each, marked in zip(given, there, strict=True) if not marked and each.dim()
        ]
        # A number of the CPU is an argument of a kernel, and torch copies indices itself.
        if not all(any(each is index for index in indices) for each in elsewhere):
            shapes = [tuple(each.shape) for each in elsewhere]
            raise MixedDevicesError(f"{func}: found tensors of shapes {shapes} on the CPU")
        # How many numbers a mask chooses is known on the device only.
        if func in _WAITS or elsewhere or any(each.dtype == torch.bool for each in indices):
            self._gpu.wait(func)


class _Questions(TorchFunctionMode):
    """What names a device, or asks for one."""

    def __init__(self, gpu: PretendedGpu) -> None:
        super().__init__()
        self._gpu = gpu

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        gpu = self._gpu
        if func == Tensor.device.__get__:  # type: ignore[attr-defined]
            return CUDA if gpu.holds(args[0]) else CPU
        if func is Tensor.pin_memory:
            return gpu.mark(args[0].clone(), "pinned")
        if func in (Tensor.to, Tensor.cpu):
            return self._moved(func, args, kwargs)
        if func is Tensor.numpy and gpu.holds(args[0]):
            raise MixedDevicesError("numpy() of a tensor on the device")
        device = kwargs.get("device")
        if device is None or torch.device(device).type != "cuda":
            return func(*args, **kwargs)
        return gpu.mark(func(*args, **kwargs | {"device": CPU}))

    def _moved(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        tensor, *rest = args
        named = [
            each for each in (*rest, kwargs.get("device")) if isinstance(each, str | torch.device)
        ]
        to = CPU if func is Tensor.cpu else (torch.device(named[0]) if named else None)
        there = self._gpu.holds(tensor)
        if to is None or (to.type == "cuda") == there:
            return func(*(_on_the_cpu(a) for a in args), **tree_map(_on_the_cpu, kwargs))
        waits = not (kwargs.get("non_blocking") and self._gpu.holds(tensor, "pinned"))
        if waits:
            self._gpu.wait(f"copy of a tensor of shape {tuple(tensor.shape)} to {to.type}")
        dtype = next((a for a in (*rest, *kwargs.values()) if isinstance(a, torch.dtype)), None)
        copied = tensor.to(dtype=dtype or tensor.dtype, copy=True)
        return self._gpu.forget(copied) if there else self._gpu.mark(copied)


def _on_the_cpu(value: Any) -> Any:
    named = isinstance(value, str | torch.device) and torch.device(value).type == "cuda"
    return CPU if named else value
