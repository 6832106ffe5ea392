"""Devices of estimates: GPUs of a cluster or of this machine, or its CPU at its measured speed."""

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dpsweep.base.gpus import Gpu

# Sustained float32 speed of training on a data-centre GPU, in 10^12 operations a second.
TERAFLOPS = 20.0
# A layer of a small vision transformer: rows are the tokens of a physical batch, outputs 4 times the width.
_ROWS, _WIDTH, _FACTOR = 2048, 192, 4
_TRIES = 10


@dataclass(frozen=True)
class Device:
    """A training device, for estimates of time."""

    name: str
    unit: str
    """the unit of its hours: GPU, or core of a CPU"""
    teraflops: float
    """sustained speed of training, in 10^12 operations a second"""
    start_seconds: float
    """time of a job before its first step: imports, weights, data, compilation"""
    step_seconds: float
    """least time of a step: noise, optimizer, sampling, kernel launches"""


GPU = Device("GPUs", "GPU", TERAFLOPS, start_seconds=40.0, step_seconds=0.02)
# On a CPU, libraries are preloaded (1 s a job, else 8 s), and nothing is compiled.
_CPU_START_SECONDS, _CPU_STEP_SECONDS = 3.0, 0.005


def this_machine(gpus: Sequence[Gpu]) -> Device:
    """Return the training device of this machine; measure the speed of a CPU, which takes 0.1 s.

    Args:
        gpus: those of this machine.
    """
    if gpus or shutil.which("rocm-smi"):
        return GPU
    name = "this machine's CPU"
    return Device(name, "core", _cpu_teraflops(), _CPU_START_SECONDS, _CPU_STEP_SECONDS)


def device_of(teraflops: float, gpus: Sequence[Gpu]) -> Device:
    """Return GPUs of a cluster at some speed, or `this_machine` if the speed is 0.

    Args:
        teraflops: sustained speed of a GPU of the cluster, in 10^12 operations a second.
        gpus: those of this machine.
    """
    return replace(GPU, teraflops=teraflops) if teraflops else this_machine(gpus)


def _cpu_teraflops() -> float:
    """Measure the speed of one core on a matrix product of a typical size (float32)."""
    # A plan without a measurement does not import numpy.
    import numpy as np  # noqa: PLC0415

    rows = np.ones((_ROWS, _WIDTH), np.float32)
    columns = np.ones((_WIDTH, _FACTOR * _WIDTH), np.float32)
    rows @ columns  # the first product starts threads
    seconds = []
    for _ in range(_TRIES):
        started = time.process_time()
        rows @ columns
        seconds.append(time.process_time() - started)
    return 2e-12 * _ROWS * _WIDTH * _FACTOR * _WIDTH / min(seconds)
