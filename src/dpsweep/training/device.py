"""The device of a training job, and a check of the machine before the first one."""

import logging
import os
import shutil
import subprocess
import time
from pathlib import Path

import psutil
import torch
from torch import nn

from dpsweep import __version__
from dpsweep.base.errors import DpsweepError
from dpsweep.base.files import write_text
from dpsweep.base.formatting import size
from dpsweep.gradients.engines import autocast_dtype, resolve_precision
from dpsweep.study.file import Training
from dpsweep.study.load import is_true
from dpsweep.training.processes import interruption

log = logging.getLogger(__name__)

REQUIRE_GPU = "DPSWEEP_REQUIRE_GPU"
"""Environment variable: true if a job needs a GPU. By default true if Slurm gave it one."""
_GIVEN_BY_SLURM = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")


class GpuError(DpsweepError):
    """A required GPU that this process cannot use."""


def default_device() -> torch.device:
    """Return the first GPU, or the CPU if there is none.

    Raises:
        GpuError: there is none, and the job requires one (`REQUIRE_GPU`).
        DpsweepError: that variable is neither true nor false.
    """
    given = any(name in os.environ for name in _GIVEN_BY_SLURM)
    required = is_true(REQUIRE_GPU, os.environ.get(REQUIRE_GPU, str(given)))
    if torch.cuda.is_available():
        return torch.device("cuda")
    if required:
        why = (
            "finds no device that works: try `nvidia-smi` or `rocm-smi` in a job"
            if torch.version.cuda or torch.version.hip
            else "is a build for CPUs: install one for CUDA or ROCm"
        )
        raise GpuError(
            f"this job has asked for a GPU and cannot use one on {os.uname().nodename}: torch "
            f"{torch.__version__} {why}; to train on the CPU on purpose, set {REQUIRE_GPU}=0"
        )
    if gpu := os.environ.get("CUDA_VISIBLE_DEVICES"):
        log.warning(
            "torch %s cannot use GPU %s: training on the CPU. For as many jobs at once as there are "
            "cores, set CUDA_VISIBLE_DEVICES to nothing",
            torch.__version__,
            gpu,
        )
    return torch.device("cpu")


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
