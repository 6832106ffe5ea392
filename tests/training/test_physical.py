"""Physical batches: as large as memory allows, halved if it runs out, without changing the update."""

import gc
import re
from typing import Any

import numpy as np
import pytest
import torch
from tests.training.tiny_study import Prepared

from dpsweep.gradients.engine import is_out_of_memory
from dpsweep.gradients.engines import ExpandedEngine
from dpsweep.training.context import TrialContext
from dpsweep.training.physical import DoesNotFitError, PhysicalBatch
from dpsweep.training.trial import TrialSpec, train_trial

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
    memory, compute = Memory(), ExpandedEngine.compute

    def limited(engine: Any, rows: Any, clipping: Any) -> Any:
        found = compute(engine, rows, clipping)
        memory.use(len(rows.labels))
        return found

    monkeypatch.setattr(ExpandedEngine, "compute", limited)
    return memory


@pytest.fixture
def made(tiny: Prepared) -> Prepared:
    return tiny.of({"physical_batch": "auto"}, {"kind": "film"}, batch_size=[B])


@pytest.fixture
def trial(made: Prepared) -> tuple[TrialContext, TrialSpec]:
    spec = made.spec(STEPS)
    assert spec.physical_batch == "auto"
    return made.context(), spec


def test_out_of_memory_halves_the_physical_batch_and_keeps_the_update(trial, memory):
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
def test_out_of_memory_errors_are_recognised(error, expected):
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
