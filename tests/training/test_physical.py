"""Physical batches: as large as memory allows, halved if it runs out, without changing the update."""

import gc
import re

import numpy as np
import pytest
import torch

from dpsweep.gradients.engines import ExpandedEngine, is_out_of_memory
from dpsweep.training.physical import DoesNotFitError, PhysicalBatch
from dpsweep.training.trial import train_trial


@pytest.fixture(autouse=True)
def no_collection(monkeypatch):
    """Skip garbage collection, which takes seconds in a process of many tests."""
    monkeypatch.setattr(gc, "collect", lambda: 0)


def test_out_of_memory_halves_the_physical_batch_and_keeps_the_update(tiny, monkeypatch):
    made = tiny.of({"physical_batch": "auto"}, {"kind": "film"}, batch_size=[60])
    context, spec = made.context(), made.spec(steps=9)
    calls, compute, fits = list[int](), ExpandedEngine.compute, 10**9

    def limited(engine, rows, clipping):
        nonlocal fits
        calls.append(len(rows.labels))
        if shrinks and len(calls) == 4:
            fits = 20
        if calls[-1] > fits:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return compute(engine, rows, clipping)

    monkeypatch.setattr(ExpandedEngine, "compute", limited)
    shrinks = False
    whole, parameters = train_trial(spec, context, None, 1e9)
    assert whole.record["physical_batch"] == 256
    calls.clear()
    shrinks = True
    halved, found = train_trial(spec, context, None, 1e9)
    assert halved.record["physical_batch"] == 16
    assert calls[:3] == halved.steps["sampled_examples"][:3].tolist()
    assert max(calls[7:]) <= 16
    for name, value in parameters.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
    np.testing.assert_array_equal(halved.steps["sampled_examples"], whole.steps["sampled_examples"])
    # The next trial of the cell begins with the size that fitted.
    calls.clear()
    train_trial(spec, context, None, 1e9)
    assert max(calls) <= 16


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), True),
        (torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel errors might be"), True),
        (ValueError("out of memory"), False),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), True),
        (RuntimeError("CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"), True),
        (RuntimeError("GET was unable to find an engine to execute this computation"), True),
        (RuntimeError("inductor raised:\nOutOfMemoryError: CUDA out of memory. So"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED"), False),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
    ],
)
def test_out_of_memory_errors_are_recognised(error, expected):
    assert is_out_of_memory(error) is expected

    def compute(size):
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
