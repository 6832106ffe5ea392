"""The device of a training job: which one, the number format of its passes, whether it computes at all.

Only what torch's autocast deems safe (matrix products, convolutions) leaves float32, and nothing is
TF32. In every precision the sum over a batch and its noise are float64; parameters, per-example norms,
updates and the evaluation are float32.
"""

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from dpsweep.base.errors import DpsweepError
from dpsweep.base.gpus import TAKEN
from dpsweep.training.job import interruption

log = logging.getLogger(__name__)

Precision = Literal["float32", "bfloat16"]

_VISIBLE_DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
REQUIRE_GPU = "DPSWEEP_REQUIRE_GPU"
"""Environment variable, set in jobs of a cluster that have asked for a GPU: there is no other device."""

_SIZE = 256
# `dpsweep doctor` sends the signal as soon as it reads that this process waits.
_SIGNAL_SECONDS = 60.0


class GpuError(DpsweepError):
    """A GPU was asked for, and this process cannot use one."""


def default_device() -> torch.device:
    """The first GPU, or the CPU where there is none.

    Raises:
        GpuError: there is no GPU, and the environment requires one (`REQUIRE_GPU`).
    """
    if torch.cuda.is_available():
        return torch.device("cuda")
    if os.environ.get(REQUIRE_GPU):
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
            + "; to train on the CPU on purpose, set `require_gpu: false` in site.yaml"
        )
    if TAKEN in os.environ:
        log.warning(
            "torch %s cannot use GPU %s: training on the CPU. For as many jobs at once as there are "
            "cores, set CUDA_VISIBLE_DEVICES to nothing",
            torch.__version__,
            os.environ[TAKEN],
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


@dataclass(frozen=True)
class ComputeDevice:
    """The device that training would take."""

    name: str
    gigabytes: float
    """of its memory; 0 for the CPU"""
    precision: Precision

    @property
    def text(self) -> str:
        """All of it on one line; the precision comes last."""
        memory = f"{self.gigabytes:g} GB, " if self.gigabytes else ""
        return f"{self.name}, {memory}{self.precision}"


def try_gpu(setting: Literal["auto", "float32", "bfloat16"], engine: str) -> ComputeDevice:
    """Compute on the device that training would take, in the precision that it would take.

    Raises:
        GpuError: there is no GPU although one is required, or it computes something else than a CPU.
    """
    device = default_device()
    precision = resolve_precision(setting, engine, device)
    if device.type == "cpu":
        return ComputeDevice("CPU (require_gpu is false)", 0.0, precision)
    properties = torch.cuda.get_device_properties(device)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(_SIZE, _SIZE, generator=generator)
    layer = nn.Linear(_SIZE, _SIZE)
    expected = layer(inputs).detach()
    try:
        with torch.autocast(
            "cuda", dtype=autocast_dtype(precision) or torch.float32, enabled=precision != "float32"
        ):
            outputs = layer.to(device)(inputs.to(device))
        outputs.float().sum().backward()
        found = outputs.detach().float().cpu()
    except RuntimeError as error:
        # "no kernel image is available": this build of torch does not know this GPU.
        raise GpuError(
            f"{properties.name} cannot compute with torch {torch.__version__}: {error}"
        ) from error
    if not torch.allclose(found, expected, atol=0.1, rtol=0.1):
        raise GpuError(
            f"{properties.name} multiplies matrices wrongly with torch {torch.__version__}"
        )
    gigabytes = properties.total_memory / 2**30
    return ComputeDevice(properties.name, round(gigabytes, 1), precision)


def wait_for_signal() -> SystemExit:
    """Wait for the signal that announces a time limit; return what ends this process then.

    Raises:
        GpuError: no signal came.
    """
    deadline = time.monotonic() + _SIGNAL_SECONDS
    while (stop := interruption(saved=True)) is None:
        if time.monotonic() > deadline:
            raise GpuError(f"no signal came within {_SIGNAL_SECONDS:g} s")
        time.sleep(0.1)
    return stop
