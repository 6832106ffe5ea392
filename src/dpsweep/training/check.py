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
from dpsweep.gradients.precision import autocast_dtype, resolve_precision
from dpsweep.study.file import Training
from dpsweep.training.job import GpuError, default_device, interruption

_SIZE = 256
# A busy Slurm controller delivers signals late.
_SIGNAL_SECONDS = 60.0
# Seconds for which squeue must list a job after its end: three of the profile's status checks.
_LEAST_JOB_AGE = 120


def check_machine(training: Training, written: Path) -> None:
    """Check the device, the signal and the requeue that training needs, and write a report.

    Where Slurm is installed, a call outside of its jobs reads its settings.

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
    elif shutil.which("scontrol"):
        lines += slurm_settings()
    write_text(written, "\n".join([*lines, ""]))


def slurm_settings() -> list[str]:
    """Return sentences on the settings of Slurm that a run depends on, with the keys of the profile to set.

    Source: slurm.conf(5), PreemptMode and MinJobAge.
    """
    call = subprocess.run(
        ["scontrol", "show", "config"], capture_output=True, text=True, check=False, timeout=60
    )
    pairs = (line.partition("=") for line in call.stdout.splitlines())
    found = {name.strip(): value.strip() for name, _, value in pairs}
    if not {"PreemptMode", "MinJobAge"} <= found.keys():
        return [f"Slurm: scontrol show config says nothing ({call.stderr.strip()})"]
    preempt, age = found["PreemptMode"], int(found["MinJobAge"].split()[0])
    lines = [f"Slurm: PreemptMode={preempt}, MinJobAge={age} s"]
    if "CANCEL" in preempt.upper():
        lines.append(
            "  Slurm does not requeue preempted jobs, and each counts as a failed attempt: set "
            "`retries: 10` in profiles/slurm/config.yaml"
        )
    if age < _LEAST_JOB_AGE:
        accounting = "slurmdbd" in found.get("AccountingStorageType", "")
        lines.append(
            "  squeue forgets a job before Snakemake sees its end: set `slurm-status-command: sacct` in "
            "profiles/slurm/config.yaml"
            if accounting
            else "  squeue forgets a job before Snakemake sees its end, and there is no accounting: ask the "
            f"administrators for MinJobAge={_LEAST_JOB_AGE}, and until then set "
            "`seconds-between-status-checks: 10` in profiles/slurm/config.yaml"
        )
    return lines


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
