"""Physical batches: as large as memory allows, halved if it runs out, without changing the update."""

import gc
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.training.tiny_study import Prepared, assert_equal, stopped_after

from dpsweep.gradients.engines import ExpandedEngine
from dpsweep.gradients.memory import is_out_of_memory
from dpsweep.privacy import Sampling
from dpsweep.training.context import TrialContext
from dpsweep.training.physical import DoesNotFitError, PhysicalBatch, padded_size, usual_batch
from dpsweep.training.randomness import PoissonSampler
from dpsweep.training.specification import TrialSpec
from dpsweep.training.trial import train_trial

STEPS, B = 9, 60


class Memory:
    """Simulated memory that holds so many examples at once, and fewer from some call on."""

    def __init__(self) -> None:
        self.examples = 10**9
        self.calls: list[int] = []
        self.shrinks: tuple[int, int] | None = None

    def use(self, examples: int) -> None:
        self.calls.append(examples)
        if self.shrinks is not None and len(self.calls) == self.shrinks[0]:
            self.examples = self.shrinks[1]
        if examples > self.examples:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


@pytest.fixture
def no_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip garbage collection, which takes seconds in a process of many tests."""
    monkeypatch.setattr(gc, "collect", lambda: 0)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch, no_collection: None) -> Memory:
    memory, clipped_sum = Memory(), ExpandedEngine.clipped_sum

    def limited(engine: Any, inputs: Any, *rest: Any) -> Any:
        found = clipped_sum(engine, inputs, *rest)
        memory.use(len(inputs))
        return found

    monkeypatch.setattr(ExpandedEngine, "clipped_sum", limited)
    return memory


@pytest.fixture
def made(tiny: Prepared) -> Prepared:
    return tiny.of({"physical_batch": "auto"}, {"kind": "film"}, batch_size=[B])


@pytest.fixture
def trial(made: Prepared) -> tuple[TrialContext, TrialSpec]:
    spec = made.spec(STEPS)
    assert spec.physical_batch == "auto"
    return made.context(), spec


def test_out_of_memory_halves_the_physical_batch_and_keeps_the_update(
    trial: tuple[TrialContext, TrialSpec], memory: Memory
) -> None:
    context, spec = trial
    whole, parameters = train_trial(spec, context, None, 1e9)
    assert whole.record["physical_batch"] == 256
    memory.calls.clear()
    memory.shrinks = (4, 20)
    halved, found = train_trial(spec, context, None, 1e9)
    assert halved.record["physical_batch"] == 16
    assert memory.calls[:3] == halved.steps["sampled_examples"][:3].tolist()
    assert max(memory.calls[7:]) <= 16
    for name, value in parameters.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
    np.testing.assert_array_equal(halved.steps["sampled_examples"], whole.steps["sampled_examples"])
    # The next trial of the cell begins with the size that fitted.
    memory.calls.clear()
    train_trial(spec, context, None, 1e9)
    assert max(memory.calls) <= 16


def test_a_resumed_trial_keeps_the_halved_physical_batch(
    made: Prepared, trial: tuple[TrialContext, TrialSpec], memory: Memory, tmp_path: Path
) -> None:
    context, spec = trial
    memory.shrinks = (4, 20)
    whole, parameters = train_trial(spec, context, None, 1e9)
    memory.examples = 10**9
    memory.calls.clear()
    with stopped_after(6):
        train_trial(spec, made.context(), tmp_path / "a.checkpoint", 1e9)
    memory.examples, memory.shrinks = 10**9, None
    resumed, found = train_trial(spec, made.context(), tmp_path / "a.checkpoint", 1e9)
    assert resumed.record["physical_batch"] == whole.record["physical_batch"] == 16
    assert_equal(found, parameters)
    memory.examples = 0
    with pytest.raises(DoesNotFitError, match=r"a single example does not fit .*take a smaller"):
        train_trial(spec, context, None, 1e9)


@pytest.mark.parametrize("size", [30, 256, 4096])
@pytest.mark.parametrize("at_once", [64, 256, 10**6])
def test_compiled_batches_have_little_padding(size: int, at_once: int) -> None:
    """Compiled code on a GPU computes padded parts of one shape."""
    sampler, train_size = PoissonSampler(Sampling(20000, size, 200), "sizes"), 20000
    rows = padded_size(at_once, size, train_size)
    assert rows <= at_once
    batches = [len(sampler.batch(step)) for step in range(200)]
    computed = sum(rows * math.ceil(batch / rows) for batch in batches)
    assert computed <= sum(batches) * (1 + 3 / math.sqrt(size))
    # Halves of the usual batch are equal parts already.
    usual = usual_batch(size, train_size)
    for parts in (1, 2, 4, 8):
        fits = math.ceil(usual / parts)
        assert padded_size(fits, size, train_size) == fits
    assert padded_size(at_once, train_size, train_size) * math.ceil(train_size / at_once) - (
        train_size
    ) < math.ceil(train_size / at_once)


def test_the_tried_step_allocates_all_memory_of_a_step(
    trial: tuple[TrialContext, TrialSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are the sum in float64, the last gradient and Adam's averages."""
    context, spec = trial
    engine = context.engine(spec.engine, context.model(1))

    def live(*_: Any) -> int:
        found = [each for each in gc.get_objects() if type(each) is torch.Tensor]
        return sum({each.data_ptr(): each.nbytes for each in found}.values())

    during: list[int] = []
    monkeypatch.setattr(engine, "clipped_sum", lambda *_: during.append(live()))
    gc.collect()
    before = live()
    context._try(engine, 1)
    size = sum(each.numel() for each in engine.parameters.values())
    assert during[0] - before >= (8 + 4 + 2 * 4) * size


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), True),
        (torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel errors might be"), True),
        (ValueError("out of memory"), False),
        *(
            (RuntimeError(said), expected)
            for said, expected in (
                ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`", True),
                ("CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", True),
                ("GET was unable to find an engine to execute this computation", True),
                ("backend='inductor' raised:\nOutOfMemoryError: CUDA out of memory. So", True),
                ("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED", False),
                ("CUDA error: an illegal memory access was encountered", False),
            )
        ),
    ],
)
def test_out_of_memory_errors_are_recognised(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) is expected

    def compute(size: int) -> int:
        if size > 2:
            raise error
        return size

    if expected:
        assert PhysicalBatch(8).fit(compute) == 2
        # The message quotes the line about memory.
        line = next(each for each in str(error).splitlines() if "raised:" not in each)
        said = re.escape(line.partition(". ")[0])
        with pytest.raises(DoesNotFitError, match=rf"fit on the device \({said}\);"):
            PhysicalBatch(8).fit(lambda size: compute(size + 2))
    else:
        with pytest.raises(type(error)):
            PhysicalBatch(8).fit(compute)
