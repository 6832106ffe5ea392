"""The GPUs of one machine without a scheduler of its own: which there are, and which job has which.

The workflow finds them when it starts (`visible_gpus`), lets no more training jobs run than they have
room for, and names them to its jobs (`offer`). A job takes one (`taken_gpu`) by locking files of
it: the operating system releases the locks when the job ends, however it ends. Short jobs share
a GPU: each GPU has four seats, and a job locks one, two or all of them.
"""

import contextlib
import fcntl
import json
import logging
import os
import re
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO

from dpsweep.base.units import count

log = logging.getLogger(__name__)

SEATS = 4
"""Jobs that can share a GPU."""
OFFERED = "DPSWEEP_GPUS"
"""Environment variable: the GPUs that the jobs of a workflow take turns on."""
TAKEN = "DPSWEEP_GPU"
"""Environment variable: the label of the GPU that this process has taken."""
_VISIBLE = "CUDA_VISIBLE_DEVICES"
# By default CUDA numbers the fastest GPU first; nvidia-smi goes by the place on the bus.
_ORDER = "CUDA_DEVICE_ORDER"
_QUERY = "--query-gpu=index,uuid,name,memory.total"
_LISTED = re.compile(r"(\d+), *(\S+), *(.*), *(.*)")
_SECONDS_BETWEEN_LOOKS = 0.2
# Most of such a job is its start, in which the GPU waits.
_SHORT_SECONDS = 120.0


@dataclass(frozen=True)
class Gpu:
    """A GPU of this machine."""

    label: str
    """for logs: its number, or how the environment names it"""
    device: str
    """what CUDA_VISIBLE_DEVICES calls it"""
    name: str
    gigabytes: float
    """of its memory; 0 where that is not known"""


def visible_gpus() -> list[Gpu]:
    """The GPUs that a process here may use: those of nvidia-smi, or what CUDA_VISIBLE_DEVICES leaves.

    None where nvidia-smi finds none.
    """
    installed = _installed()
    named = os.environ.get(_VISIBLE)
    if named is None or not installed:
        return installed
    visible = []
    for token in (each.strip() for each in named.split(",")):
        known = next((each for each in installed if _names(token, each)), None)
        if known is None and not token.startswith("MIG-"):
            break  # as CUDA reads it: what follows a device that does not exist is not seen
        # How much memory a part of a GPU has is not known here.
        gpu = replace(known, label=token) if known else Gpu(token, token, "a part of a GPU", 0.0)
        visible.append(replace(gpu, device=token))
    return visible


def _names(token: str, gpu: Gpu) -> bool:
    return token == gpu.label or (token.startswith("GPU-") and gpu.device.startswith(token))


def _installed() -> list[Gpu]:
    try:
        # Its status may tell of a warning: what it lists is there.
        listed = subprocess.run(
            ["nvidia-smi", _QUERY, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    found = []
    for line in listed.splitlines():
        if (parts := _LISTED.fullmatch(line.strip())) is None:
            continue  # words
        index, uuid, name, mebibytes = parts.groups()
        # Some GPUs share the memory of the machine and have "[N/A]".
        known = int(mebibytes) if mebibytes.isdecimal() else 0
        found.append(Gpu(index, uuid, name, round(known * 2**20 / 1e9, 1)))
    return found


def describe(gpus: Sequence[Gpu]) -> str:
    """How many there are and of which kind, on one line."""
    kinds = Counter(
        f"{gpu.name}, {gpu.gigabytes:g} GB" if gpu.gigabytes else gpu.name for gpu in gpus
    )
    what = count(len(gpus), "GPU")
    listed = "; ".join(f"{found} x {kind}" for kind, found in kinds.items())
    return f"{what} on this machine ({listed})."


def seats(seconds: float, gigabytes: float, gpus: Sequence[Gpu]) -> int:
    """How many of a GPU's seats a job takes: all of them, unless it is short and small.

    Args:
        seconds: how long it is estimated to take, its start included.
        gigabytes: of the GPU's memory that it is estimated to need.
        gpus: which it may get.
    """
    smallest = min((gpu.gigabytes for gpu in gpus), default=0.0)
    if seconds <= _SHORT_SECONDS:
        for number in (1, SEATS // 2):
            if gigabytes * SEATS / number <= smallest:
                return number
    return SEATS


def offer(gpus: Sequence[Gpu]) -> None:
    """Name GPUs to the jobs that this process will start."""
    os.environ[OFFERED] = json.dumps([asdict(gpu) for gpu in gpus])


def offered() -> list[Gpu]:
    """The GPUs that the workflow has named to this job; none without a workflow or on a cluster."""
    return [Gpu(**each) for each in json.loads(os.environ.get(OFFERED, "[]"))]


@contextlib.contextmanager
def taken_gpu(number: int, folder: Path | None = None) -> Iterator[Gpu | None]:
    """Take seats of one of the offered GPUs, waiting until they are free; no other one is seen.

    It has to be called before anything of CUDA is.

    Args:
        number: of seats.
        folder: of the locks; by default one of this user on this machine, whatever the study.
    """
    gpus = offered()
    if not gpus:
        yield None
        return
    folder = folder or Path(tempfile.gettempdir()) / f"dpsweep-gpus-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.ExitStack() as held:
        with (folder / "queue").open("w") as queue:
            # Who waits keeps the others behind it, so that short jobs do not starve a long one.
            fcntl.flock(queue, fcntl.LOCK_EX)
            while (gpu := _take(gpus, number, folder, held)) is None:
                time.sleep(_SECONDS_BETWEEN_LOOKS)
        os.environ |= {_VISIBLE: gpu.device, TAKEN: gpu.label}
        os.environ.setdefault(_ORDER, "PCI_BUS_ID")
        log.info("on GPU %s (%s)", gpu.label, gpu.name)
        yield gpu


def _take(gpus: Sequence[Gpu], number: int, folder: Path, held: contextlib.ExitStack) -> Gpu | None:
    """Lock seats of the emptiest GPU; None where none has enough."""
    with contextlib.ExitStack() as others:
        free: dict[Gpu, list[IO[str]]] = {}
        for gpu in gpus:
            name = gpu.device.replace(os.sep, "-")
            files = (
                others.enter_context((folder / f"{name}.{seat}").open("w")) for seat in range(SEATS)
            )
            free[gpu] = [file for file in files if _locked(file)]
        chosen = max(gpus, key=lambda gpu: len(free[gpu]))
        if len(free[chosen]) < number:
            return None
        for file in free[chosen][:number]:
            # The lock is held until the second of both is closed.
            held.enter_context(os.fdopen(os.dup(file.fileno()), "w"))
        return chosen


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
