"""Whether the device of this process computes; ``dpsweep doctor`` runs this in jobs."""

import time
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from dpsweep.training.context import GpuError, default_device
from dpsweep.training.interruption import interruption
from dpsweep.training.precision import Precision, autocast_dtype, resolve_precision

_SIZE = 256
# `dpsweep doctor` sends the signal as soon as it reads that this process waits.
_SIGNAL_SECONDS = 60.0


@dataclass(frozen=True)
class Device:
    """What training would compute on."""

    name: str
    gigabytes: float
    """of its memory; 0 for the CPU"""
    precision: Precision

    @property
    def text(self) -> str:
        """All of it on one line; the precision comes last."""
        memory = f"{self.gigabytes:g} GB, " if self.gigabytes else ""
        return f"{self.name}, {memory}{self.precision}"


def try_gpu(setting: Literal["auto", "float32", "bfloat16"], engine: str) -> Device:
    """Compute on the device that training would take, in the precision that it would take.

    Raises:
        GpuError: there is no GPU although one is required, or it computes something else than a CPU.
    """
    device = default_device()
    precision = resolve_precision(setting, engine, device)
    if device.type == "cpu":
        return Device("CPU (require_gpu is false)", 0.0, precision)
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
    return Device(properties.name, round(gigabytes, 1), precision)


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
