"""The list of GPUs of a machine, and locks that give each job its own.

A training job locks files with the names of its GPUs (`taken_gpus`), and sees only these. It waits if
too few are free. The operating system releases the lock when the job ends, also after a kill.
This also works on a cluster: a scheduler shows a job only its own GPUs, and no other job locks them.
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

from dpsweep.base.formatting import count

log = logging.getLogger(__name__)

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_QUERY = "--query-gpu=index,uuid,name,memory.total"
_LISTED = re.compile(r"(\d+), *(\S+), *(.*), *(.*)")
_SECONDS_BETWEEN_LOOKS = 0.2
_COLLECTING = "collecting"


@dataclass(frozen=True)
class Gpu:
    """A GPU of this machine."""

    label: str
    """its number, or its name in CUDA_VISIBLE_DEVICES; for logs"""
    device: str
    """its UUID, for CUDA_VISIBLE_DEVICES"""
    name: str
    gigabytes: float
    """size of its memory; 0 if unknown"""


def visible_gpus() -> list[Gpu]:
    """Return the GPUs of nvidia-smi that CUDA_VISIBLE_DEVICES allows; an empty list without any."""
    installed = _installed()
    named = os.environ.get(_VISIBLE)
    if named is None or not installed:
        return installed
    visible = []
    for token in (each.strip() for each in named.split(",")):
        known = next((each for each in installed if _names(token, each)), None)
        if known is None and not token.startswith("MIG-"):
            break  # CUDA ignores everything after a device that does not exist
        part = Gpu(token, token, "a part of a GPU", 0.0)
        visible.append(replace(known, label=token) if known else part)
    return visible


def _names(token: str, gpu: Gpu) -> bool:
    return token == gpu.label or (token.startswith("GPU-") and gpu.device.startswith(token))


def _installed() -> list[Gpu]:
    try:
        # The status is ignored: it may be a warning, and the listed GPUs exist.
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
            continue  # a message
        index, uuid, name, mebibytes = parts.groups()
        # GPUs that share the memory of the machine have "[N/A]".
        known = int(mebibytes) if mebibytes.isdecimal() else 0
        found.append(Gpu(index, uuid, name, round(known * 2**20 / 1e9, 1)))
    return found


def describe(gpus: Sequence[Gpu]) -> str:
    """Return the number and kinds of GPUs on one line."""
    kinds = Counter(
        f"{gpu.name}, {gpu.gigabytes:g} GB" if gpu.gigabytes else gpu.name for gpu in gpus
    )
    what = count(len(gpus), "GPU")
    listed = "; ".join(f"{found} x {kind}" for kind, found in kinds.items())
    return f"{what} on this machine ({listed})."


@contextlib.contextmanager
def taken_gpus(count: int, folder: Path | None = None) -> Iterator[list[Gpu]]:
    """Lock some of the visible GPUs, make them the only visible ones, and yield them; wait for them.

    Call this before any call of CUDA.

    Args:
        count: the number of GPUs; all visible ones if they are fewer.
        folder: of the locks; by default one folder for all studies of this user on this machine.
    """
    gpus = visible_gpus()
    if not gpus:
        yield []
        return
    folder = folder or Path(tempfile.gettempdir()) / f"dpsweep-gpus-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    taken: list[Gpu] = []
    with contextlib.ExitStack() as held:
        # One job at a time collects: two would wait for each other, and single GPUs would go to others.
        with (folder / _COLLECTING).open("w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            while len(taken) < min(count, len(gpus)):
                free = [each for each in gpus if each not in taken]
                if gpu := _take(free, folder, held):
                    taken.append(gpu)
                else:
                    time.sleep(_SECONDS_BETWEEN_LOOKS)
        before = os.environ.get(_VISIBLE)
        os.environ[_VISIBLE] = ",".join(gpu.device for gpu in taken)
        log.info("on GPU %s", ", ".join(f"{gpu.label} ({gpu.name})" for gpu in taken))
        try:
            yield taken
        finally:
            os.environ.pop(_VISIBLE) if before is None else os.environ.update({_VISIBLE: before})


def _take(gpus: Sequence[Gpu], folder: Path, held: contextlib.ExitStack) -> Gpu | None:
    """Lock and return a free GPU; return None if there is none."""
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
