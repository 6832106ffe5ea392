"""The GPUs of a machine: which there are, and which job has which.

A job that trains takes one GPU (`taken_gpu`) by locking a file that is named after it, and sees no other
one. Jobs that find none free wait. The operating system releases the lock when the job ends, however it ends.
A scheduler shows a job its own GPUs only, and no other job locks these, so the same holds on a cluster.
"""

import contextlib
import fcntl
import logging
import os
import re
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dpsweep.base.units import count

log = logging.getLogger(__name__)

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_QUERY = "--query-gpu=index,uuid,name,memory.total"
_LISTED = re.compile(r"(\d+), *(\S+), *(.*), *(.*)")
_SECONDS_BETWEEN_LOOKS = 0.2


@dataclass(frozen=True)
class Gpu:
    """A GPU of this machine."""

    label: str
    """for logs: its number, or how the environment names it"""
    device: str
    """its UUID, which CUDA_VISIBLE_DEVICES takes"""
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
        part = Gpu(token, token, "a part of a GPU", 0.0)
        visible.append(replace(known, label=token) if known else part)
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


@contextlib.contextmanager
def taken_gpu(folder: Path | None = None) -> Iterator[Gpu | None]:
    """Take one of the visible GPUs, waiting until one is free; no other one is seen.

    It has to be called before anything of CUDA is. None where there is no GPU that nvidia-smi lists.

    Args:
        folder: of the locks; by default one of this user on this machine, whatever the study.
    """
    gpus = visible_gpus()
    if not gpus:
        yield None
        return
    folder = folder or Path(tempfile.gettempdir()) / f"dpsweep-gpus-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.ExitStack() as held:
        while (gpu := _take(gpus, folder, held)) is None:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        os.environ[_VISIBLE] = gpu.device
        log.info("on GPU %s (%s)", gpu.label, gpu.name)
        yield gpu


def _take(gpus: Sequence[Gpu], folder: Path, held: contextlib.ExitStack) -> Gpu | None:
    """Lock a GPU that is free; None where none is."""
    for gpu in gpus:
        file = (folder / gpu.device.replace(os.sep, "-")).open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            continue
        held.enter_context(file)
        return gpu
    return None
