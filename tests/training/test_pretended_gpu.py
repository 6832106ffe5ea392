"""Trials on a simulated GPU: no operation mixes devices, and no engine waits for the device.

All tensors are on the CPU. Some are marked, by their storage, as on the device: tensors that were
created there, copied there, or computed from such tensors. Kernels, memory and rounding of a real GPU
are not simulated.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.gradients.tiny_models import make
from tests.training.tiny_study import Prepared, end, stopped_after
from torch import Tensor
from torch._C import _functorch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dpsweep.gradients import make_engine
from dpsweep.study.clipping import AutomaticClipping, FlatClipping, NoClipping
from dpsweep.training.canaries import CanaryContext, audit_trial
from dpsweep.training.gradient_norms import training_set_norms
from dpsweep.training.physical import PhysicalBatch
from dpsweep.training.randomness import numpy_stream
from dpsweep.training.store import Arrays
from dpsweep.training.trial import TrialSpec

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
_FACTORIES = (
    *("arange", "as_tensor", "empty", "eye", "full", "linspace", "ones", "rand", "randint"),
    *("randn", "randperm", "tensor", "zeros"),
    *("empty_like", "full_like", "ones_like", "rand_like", "randn_like", "zeros_like"),
)
_aten = torch.ops.aten
_COPIES = {_aten.copy_.default, _aten._to_copy.default, _aten.set_.source_Storage}
_INDEXING = {_aten.index.Tensor, _aten.index_put_.default}
_WAITS = {_aten._local_scalar_dense.default, _aten.nonzero.default, _aten.equal.default}
# These do not accept numbers of the CPU together with tensors of the device.
_ALL_THERE = {_aten.stack.default, _aten.cat.default}


class MixedDevicesError(Exception):
    """An operation on tensors of both the CPU and the device."""


class WaitedError(Exception):
    """An operation for which the CPU would wait for the device."""


class PretendedGpu:
    """The tensors that are on the device.

    Attributes:
        may_wait: whether the CPU may wait for the device at present.
    """

    def __init__(self) -> None:
        self.may_wait = True
        self._marked: dict[int, StorageWeakRef] = {}

    def mark(self, tensor: Tensor) -> Tensor:
        storage = _unwrapped(tensor).untyped_storage()
        self._marked[storage._cdata] = StorageWeakRef(storage)
        return tensor

    def forget(self, tensor: Tensor) -> Tensor:
        self._marked.pop(_unwrapped(tensor).untyped_storage()._cdata, None)
        return tensor

    def holds(self, tensor: Tensor) -> bool:
        found = self._marked.get(_unwrapped(tensor).untyped_storage()._cdata)
        return found is not None and not found.expired()

    @contextmanager
    def pretended(self, free: int = 2**40) -> Iterator[None]:
        """Simulate a GPU within this context, with so much free memory."""
        generator, numpy = torch.Generator, Tensor.numpy

        def to_numpy(tensor: Tensor, **options: Any) -> Any:
            if self.holds(tensor):
                raise MixedDevicesError("numpy() of a tensor on the device")
            return numpy(tensor, **options)

        with pytest.MonkeyPatch.context() as patch:
            for name in _FACTORIES:
                patch.setattr(torch, name, self._creating(getattr(torch, name)))
            for name, value in {
                "device": property(lambda tensor: CUDA if self.holds(tensor) else CPU),
                "is_cuda": property(self.holds),
                "to": self._moving(_without_modes(Tensor.to)),
                "cpu": lambda tensor: tensor.to(CPU),
                "numpy": to_numpy,
                "pin_memory": Tensor.clone,
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
            if not (self.may_wait or options.get("non_blocking")):
                raise WaitedError(f"copy of a tensor of shape {tuple(tensor.shape)} to {named[0]}")
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
            indices = _refuse_mixed(func, args, given, there)
            # Only the device can count the numbers that a mask selects.
            masks = any(isinstance(i, Tensor) and i.dtype == torch.bool for i in indices)
            if (func in _WAITS or masks) and not self._gpu.may_wait:
                raise WaitedError(str(func))
        found = func(*args, **(kwargs or {}))
        if there[0] if func is _aten.copy_.default else any(there):
            for each in tree_leaves(found):
                if isinstance(each, Tensor):
                    self._gpu.mark(each)
        return found


def _refuse_mixed(func: Any, args: tuple[Any, ...], given: list[Tensor], there: list[bool]) -> Any:
    """Return the indices. Most kernels accept numbers of the CPU, and torch copies indices itself."""
    indices = tree_leaves(args[1]) if func in _INDEXING and there[0] else []
    elsewhere = [
        tuple(each.shape)
        for each, marked in zip(given, there, strict=True)
        if not marked
        and (each.dim() or func in _ALL_THERE)
        and not any(each is index for index in indices)
    ]
    if elsewhere:
        raise MixedDevicesError(f"{func}: found tensors of shapes {elsewhere} on the CPU")
    return indices


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


# -- trials ---------------------------------------------------------------------------------------

STEPS, B, AT_ONCE = 3, 30, 20
CLIPPINGS = (FlatClipping(1.0), AutomaticClipping(), NoClipping())
ROUNDING = {"rtol": 1e-4, "atol": 1e-6}


@pytest.fixture(scope="module")
def made(tiny: Prepared) -> Prepared:
    return tiny.of({"physical_batch": AT_ONCE}, {"kind": "film"}, batch_size=[B])


@pytest.fixture
def spec(made: Prepared) -> TrialSpec:
    return made.spec(STEPS)


@pytest.fixture
def gpu() -> PretendedGpu:
    return PretendedGpu()


def quiet(spec: TrialSpec) -> TrialSpec:
    """Remove noise, and Adam, which amplifies gradients that are only rounding errors."""
    return replace(spec, noise_multiplier=0.0, optimizer="sgd", learning_rate=0.1)


def equal(found: Arrays, wanted: Arrays, **tolerance: float) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, **{"rtol": 0, **tolerance}, err_msg=name)


@pytest.mark.parametrize(
    ("begins", "goes_on"), [(CUDA, CUDA), (CPU, CUDA), (CUDA, CPU)], ids=["stays", "to", "from"]
)
def test_a_trial_resumes_on_the_same_or_another_device(
    begins, goes_on, gpu, made, spec, tmp_path, caplog
):
    """A move needs a trial without noise and a tolerance: each device draws and rounds differently."""
    moves = begins != goes_on
    if moves:
        spec = quiet(spec)
    with gpu.pretended():
        with stopped_after(2):
            end(spec, made.context(begins), tmp_path / "trial.checkpoint")
        with caplog.at_level("INFO"):
            found = end(spec, made.context(goes_on), tmp_path / "trial.checkpoint")
        assert "continuing from step 2" in caplog.text
        equal(found, end(spec, made.context(goes_on)), **(ROUNDING if moves else {}))


@pytest.mark.parametrize(("compiled", "free"), [(False, 2**40), (True, 2**40), (True, 0)])
def test_results_equal_those_of_the_cpu(gpu, made, spec, compiled, free, monkeypatch):
    """Compiled code uses padding."""
    spec = replace(quiet(spec), compile=compiled)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    wanted = end(spec, made.context(CPU))
    with gpu.pretended(free):
        context = made.context(CUDA)
        assert context.train.labels.device == CUDA
        assert context.train.inputs.device == (CUDA if free else CPU)
        equal(end(spec, context), wanted, **ROUNDING)


@pytest.mark.parametrize(
    ("engine", "name"),
    [
        *(("auto", name) for name in ("linear-head", "vit-lora", "bit-film", "resnet-all")),
        *(("auto", "distilbert-all"), ("loop", "vit-film"), ("vmap", "convolutions-all")),
    ],
)
def test_engines_mix_no_devices_and_do_not_wait(engine, name, gpu):
    """Only the first call, which compares engines, may wait."""
    case = make(name, torch.float32)
    with gpu.pretended():
        batch = tuple(each.to(CUDA) for each in case.batch)
        made = make_engine(engine, case.model.to(CUDA), case.head)
        made.norms(*batch)
        gpu.may_wait = False
        sums = [made.clipped_sum(*batch, clipping) for clipping in CLIPPINGS]
        rows, _ = made.gradients(*batch[:2])
        gpu.may_wait = True
        found = [each for part in sums for each in (*part.gradients.values(), part.norms)]
        assert {each.device for each in (*found, rows)} == {CUDA}


def test_the_largest_physical_batch_that_fits_is_found(gpu, made, spec, monkeypatch):
    tried: list[int] = []
    with gpu.pretended():
        context = made.context(CUDA)
        engine = context.engine(spec.engine, context.model(1))
        original = engine.clipped_sum

        def clipped_sum(inputs: Tensor, *rest: Any) -> Any:
            tried.append(len(inputs))
            if len(inputs) == B + 11:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return original(inputs, *rest)

        monkeypatch.setattr(engine, "clipped_sum", clipped_sum)
        assert context.physical_batch("auto", engine, B).size == 21
        # Another B is tried separately.
        assert context.physical_batch("auto", engine, 100).size == 120
        assert tried == [B + 11, 21, 120]
        # A given size is limited to the usual batch, and not tried.
        assert context.physical_batch(256, engine, B).size == B + 11
        assert context.physical_batch(7, engine, B).size == 7
        assert len(tried) == 3


def test_gradient_norms_and_audits_mix_no_devices(gpu, made, spec):
    with gpu.pretended():
        context = made.context(CUDA)
        engine = context.engine(spec.engine, context.model(1))
        norms, _ = training_set_norms(engine, context, PhysicalBatch(100))
        assert norms.shape == (len(made.data.train_labels),)
        canaries = CanaryContext(
            *(made.data, made.backbone, made.study.methods["method"], 10),
            *(numpy_stream("coins"), 0.0, CUDA),
        )
        audited = audit_trial(replace(spec, train_size=spec.train_size + 10), canaries)
    assert audited.observations.shape == (STEPS, 10)


def test_mixed_devices_and_waits_are_detected(gpu):
    with gpu.pretended():
        there, here = torch.arange(6.0, device=CUDA), torch.arange(6)
        moved = torch.randn(6, requires_grad=True).to(CUDA)
        (gradient,) = torch.autograd.grad((moved * there).sum(), moved)
        assert gradient.device == there[here].device == CUDA != here.device
        for mistake in (lambda: there + here, lambda: torch.stack([there, here]), there.numpy):
            with pytest.raises(MixedDevicesError):
                mistake()
        gpu.may_wait = False
        for mistake in (there[0].item, lambda: there[there > 2], there.cpu):
            with pytest.raises(WaitedError):
                mistake()
