"""The device of a training job: which one, the number format of its passes.

Only what torch's autocast deems safe (matrix products, convolutions) leaves float32, and nothing is
TF32. In every precision the sum over a batch and its noise are float64; parameters, per-example norms,
updates and the evaluation are float32.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor

from dpsweep.base.errors import DpsweepError

log = logging.getLogger(__name__)

Precision = Literal["float32", "bfloat16"]

_VISIBLE_DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
REQUIRE_GPU = "DPSWEEP_REQUIRE_GPU"
"""Environment variable: 1 where a job needs a GPU, 0 where not. By default 1 if Slurm gave it one."""
_GIVEN_BY_SLURM = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")


class GpuError(DpsweepError):
    """A GPU was asked for, and this process cannot use one."""


def default_device() -> torch.device:
    """The first GPU, or the CPU where there is none.

    Raises:
        GpuError: there is none, and the job has to use one (`REQUIRE_GPU`).
    """
    if torch.cuda.is_available():
        return torch.device("cuda")
    given = any(name in os.environ for name in _GIVEN_BY_SLURM)
    if os.environ.get(REQUIRE_GPU, str(int(given))) != "0":
        built = torch.version.cuda or torch.version.hip
        visible = {name: os.environ.get(name) for name in _VISIBLE_DEVICES if name in os.environ}
        raise GpuError(
            f"this job has asked for a GPU and cannot use one on {os.uname().nodename}: "
            + (
                f"torch {torch.__version__} finds no device that works (driver, container or "
                f"devices of the job: {visible or 'none is set'}). Try `nvidia-smi` or `rocm-smi` in a job"
                if built
                else f"torch {torch.__version__} is a build for CPUs. Install one for CUDA or ROCm"
            )
            + f"; to train on the CPU on purpose, set {REQUIRE_GPU}=0"
        )
    if gpu := os.environ.get("CUDA_VISIBLE_DEVICES"):
        log.warning(
            "torch %s cannot use GPU %s: training on the CPU. For as many jobs at once as there are "
            "cores, set CUDA_VISIBLE_DEVICES to nothing",
            torch.__version__,
            gpu,
        )
    return torch.device("cpu")


def resolve_precision(
    setting: Literal["auto", "float32", "bfloat16"], engine: str, device: torch.device
) -> Precision:
    """Return the precision that a setting of the study means on a device.

    ``auto`` is bfloat16 on GPUs that compute in it and for engines that can, otherwise float32. A
    trial's key holds what this returns, never ``auto``.

    >>> resolve_precision("auto", "expanded", torch.device("cpu"))
    'float32'
    """
    if setting != "auto":
        return setting
    # The norms of Opacus are in the precision of the forward pass.
    if engine == "opacus" or device.type != "cuda":
        return "float32"
    with torch.cuda.device(device):
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    return "bfloat16" if native else "float32"


def autocast_dtype(precision: Precision) -> torch.dtype | None:
    """Return what engines take as ``autocast``."""
    return torch.bfloat16 if precision == "bfloat16" else None


def sum_dtype(tensor: Tensor) -> torch.dtype:
    """Return the dtype in which numbers like those of ``tensor`` are summed."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


@contextmanager
def full_precision() -> Iterator[None]:
    """Let GPUs multiply float32 numbers as such, not as TF32 with a mantissa of 10 bits.

    Otherwise norms and sums differ by 1e-3, and so does the sensitivity. TF32 is torch's default
    for convolutions. Autocast is not touched.
    """
    # torch's stubs lack the latter.
    settings = torch.backends.cuda.matmul, torch.backends.cudnn.conv  # type: ignore[attr-defined]
    before = [each.fp32_precision for each in settings]
    try:
        for each in settings:
            each.fp32_precision = "ieee"
        yield
    finally:
        for each, precision in zip(settings, before, strict=True):
            each.fp32_precision = precision
