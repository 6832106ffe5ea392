"""What trains where no site says it: a GPU of this machine, or its CPU at the speed that it shows."""

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass

from dpsweep.gpus import Gpu, visible_gpus
from dpsweep.planning.cost import TERAFLOPS

# A layer of a small vision transformer for a physical batch: images by tokens, width, four times the width.
_ROWS, _WIDTH, _FACTOR = 2048, 192, 4
_TRIES = 10


@dataclass(frozen=True)
class Device:
    """What trains, for estimates of time."""

    name: str
    teraflops: float
    """10^12 operations a second that training sustains"""


GPU = Device("GPUs", TERAFLOPS)


def this_machine(gpus: Sequence[Gpu] | None = None) -> Device:
    """The device that trains on this machine; the speed of a CPU is measured, which takes 0.1 s.

    Args:
        gpus: those of this machine; None looks for them.
    """
    if (visible_gpus() if gpus is None else gpus) or shutil.which("rocm-smi"):
        return GPU
    return Device("this machine's CPU", _cpu_teraflops())


def _cpu_teraflops() -> float:
    """The speed of one product of matrices, of the size that training has (float32), on one core."""
    # Planning without a measurement does not wait for numpy.
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
