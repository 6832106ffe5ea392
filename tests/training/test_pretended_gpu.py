"""Trials on a simulated GPU: no operation mixes devices, and no engine waits for the device."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.gradients.tiny_models import make
from tests.training.pretended_gpu import CPU, CUDA, MixedDevicesError, PretendedGpu, WaitedError
from tests.training.tiny_study import Prepared, end, stopped_after
from torch import Tensor

from dpsweep.gradients import make_engine
from dpsweep.study.clipping import AutomaticClipping, FlatClipping, NoClipping
from dpsweep.training.canaries import CanaryContext, audit_trial
from dpsweep.training.gradient_norms import training_set_norms
from dpsweep.training.physical import PhysicalBatch
from dpsweep.training.randomness import numpy_stream
from dpsweep.training.store import Arrays
from dpsweep.training.trial import TrialSpec

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
