"""The process of a training job: its device, its signals, no network, and a check of the machine before.

While `watched` is active, SIGTERM and SIGUSR1 are only recorded. The running trial checks for them at
its next step, saves its state and raises `Interrupted`, which ends the process:

* SIGUSR1 announces a time limit (Slurm's ``--signal``): exit status 75, *run the command again*;
* SIGTERM ends the job for good (scancel, preemption, shutdown): exit status 143.

In both cases the next call for the same cell continues from the saved step. SIGINT ends the job at
once, and the next call continues from the last checkpoint.

Compute nodes often have no network, and a job must not wait. Datasets and weights are downloaded when
they are prepared. After `refuse_network`, a library that tries to connect during a trial (for a newer
revision, a missing file, usage statistics) gets a `NetworkRefusedError`.
"""

import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

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
from dpsweep.training import processes

log = logging.getLogger(__name__)

EXIT_AGAIN = 75
"""Exit status (EX_TEMPFAIL): the state is saved, and the same command continues from it."""

EXIT_TERMINATED = 128 + signal.SIGTERM
"""Exit status of a process that SIGTERM ended."""

_CONNECTING = frozenset({"socket.connect", "socket.getaddrinfo", "socket.gethostbyname"})

_received: signal.Signals | None = None


class Interrupted(SystemExit):
    """The end of the process, with an exit status that gives the reason; no error is printed."""


@contextmanager
def watched() -> Iterator[None]:
    """Record SIGTERM and SIGUSR1 for `interruption` (main thread only)."""

    def record(number: int, _frame: FrameType | None) -> None:
        global _received  # noqa: PLW0603 (a signal is an event of the whole process)
        # SIGTERM is final: a later SIGUSR1 must not request another run.
        if _received != signal.SIGTERM:
            _received = signal.Signals(number)

    global _received  # noqa: PLW0603
    _received = None
    before = {each: signal.signal(each, record) for each in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        yield
    except Interrupted as stop:
        log.info(
            "stopped by %s, exit status %s", _received.name if _received else "request", stop.code
        )
        # The process ends. If another signal ended it, its status would not be that of a saved state.
        before = dict.fromkeys(before, signal.SIG_IGN)
        raise
    except KeyboardInterrupt:
        log.info("stopped by SIGINT, exit status %s", 128 + signal.SIGINT)
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _received = None


def interruption(*, saved: bool) -> Interrupted | None:
    """Return the exception to raise once a signal asks to stop, or None before that.

    Args:
        saved: whether this process has saved any progress. Without progress, another call with the
            same time limit would fail too, so the status is not `EXIT_AGAIN`.
    """
    urgency = (None, signal.SIGUSR1, signal.SIGTERM)
    # All processes that train together stop after the same step.
    received = urgency[processes.largest(urgency.index(_received))]
    if received is None:
        return None
    again = saved and received == signal.SIGUSR1
    return Interrupted(EXIT_AGAIN if again else EXIT_TERMINATED)


class NetworkRefusedError(OSError):
    """A connection that a training job tried to open."""


def refuse_network() -> None:
    """Refuse every later connection of Python code in this process, but allow Unix sockets."""
    sys.addaudithook(_refuse)


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in _CONNECTING:
        return
    if event == "socket.connect" and arguments[0].family == socket.AF_UNIX:
        return
    raise NetworkRefusedError(
        f"{event} {arguments[-1] if event == 'socket.connect' else arguments[0]}: a training job "
        "reads prepared files only; fetch what it needs with prepare-dataset or prepare-backbone"
    )


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
