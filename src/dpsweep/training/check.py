"""Check of a machine before training: a device that computes, and under Slurm a signal and a requeue."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import psutil
import torch
from torch import nn

from dpsweep import __version__
from dpsweep.base.files import write_text
from dpsweep.base.units import size
from dpsweep.config import Training
from dpsweep.gradients.precision import autocast_dtype, resolve_precision
from dpsweep.training.device import GpuError, default_device
from dpsweep.training.job import interruption

_SIZE = 256
# A busy Slurm controller delivers signals late.
_SIGNAL_SECONDS = 60.0


def check_machine(training: Training, written: Path) -> None:
    """Check the device, the signal and the requeue that training needs, and write a report.

    A Slurm job first sends itself the signal that announces a time limit, and ends with exit status 75.
    Slurm requeues the job; the second call writes how long that took.

    Args:
        training: the study's section.
        written: the file of the report.

    Raises:
        GpuError: a GPU is required and missing, its results differ from a CPU's, or no signal came.
        Interrupted: the signal came.
    """
    lines = [
        f"dpsweep {__version__} and torch {torch.__version__} on {os.uname().nodename}",
        f"device: {_compute(training)}",
        f"free for results: {size(shutil.disk_usage(written.parent).free)}",
    ]
    if (job := os.environ.get("SLURM_JOB_ID")) is not None:
        sent = written.with_suffix(f".{job}")
        if not sent.exists():
            write_text(sent, str(time.time()))
            subprocess.run(["scancel", "--signal=USR1", job], check=True)
            _wait_for_signal()
        seconds = time.time() - float(sent.read_text(encoding="utf-8"))
        sent.unlink()
        lines.append(f"signal and requeue: Slurm job {job} went on after {seconds:.0f} s")
    write_text(written, "\n".join([*lines, ""]))


def _compute(training: Training) -> str:
    """Multiply matrices on the device and in the precision of training; return a description of both."""
    device = default_device()
    precision = resolve_precision(training.precision, training.engine, device)
    if device.type == "cpu":
        return f"CPU, {size(psutil.virtual_memory().total)}, {precision}"
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
        # "no kernel image is available": this build of torch does not support this GPU.
        raise GpuError(
            f"{properties.name} cannot compute with torch {torch.__version__}: {error}"
        ) from error
    if not torch.allclose(found, expected, atol=0.1, rtol=0.1):
        raise GpuError(
            f"{properties.name} multiplies matrices wrongly with torch {torch.__version__}"
        )
    return f"{properties.name}, {size(properties.total_memory)}, {precision}"


def _wait_for_signal() -> None:
    deadline = time.monotonic() + _SIGNAL_SECONDS
    while (stop := interruption(saved=True)) is None:
        if time.monotonic() > deadline:
            raise GpuError(f"no signal came from Slurm within {_SIGNAL_SECONDS:g} s")
        time.sleep(0.1)
    raise stop
