"""Folders for work that may be interrupted and resumed, also while others do the same work."""

import contextlib
import logging
import os
import shutil
import socket
import time
from pathlib import Path
from typing import Any, BinaryIO

from dpsweep.base.files import read_json, write_json
from dpsweep.data.prepared import DatasetError

log = logging.getLogger(__name__)

# Work on another machine that has written nothing for so long has been killed.
_ABANDONED_SECONDS = 1800


def claim(parent: Path) -> Path:
    """Return a folder in ``parent`` that no other process uses.

    The folder is named after its owner. That of an owner that is gone is taken over with what is
    in it: renaming it is the claim, and only one process can.
    """
    own = parent / f"{socket.gethostname()}-{os.getpid()}"
    own.mkdir(parents=True, exist_ok=True)
    for folder in sorted(parent.iterdir()):
        with contextlib.suppress(OSError):  # it was released, or another process was faster
            if folder != own and _is_abandoned(folder):
                folder.rename(own)
                return own
    return own


def release(folder: Path) -> None:
    """Remove a claimed folder, and its parent if nobody else is at work there."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()


class Record:
    """How far the work on a file is, in a file beside it that is replaced after every block.

    Args:
        path: of the record.
        work: the file that is being written.
        identity: says what is being written; another one starts anew.
    """

    def __init__(self, path: Path, work: Path, identity: str) -> None:
        self._path, self._work, self._identity = path, work, identity

    def read(self) -> dict[str, Any]:
        """Return the last record; empty where the work has to start anew."""
        try:
            found = read_json(self._path)
            if found["identity"] == self._identity and self._work.exists():
                log.info("%s: going on after %d examples", self._work.stem, found["done"])
                return dict(found)
        except (FileNotFoundError, ValueError, KeyError):
            pass
        return {}

    def write(self, stream: BinaryIO, done: int, **more: Any) -> None:
        """Record that what the stream was given so far is ``done`` examples."""
        sync(stream)
        write_json(self._path, {"identity": self._identity, "done": done, **more})


def sync(stream: BinaryIO) -> None:
    """Have everything on the disk that was written."""
    stream.flush()
    os.fsync(stream.fileno())


def require_space(folder: Path, needed: int, what: str) -> None:
    """Refuse to begin what does not fit on the disk.

    Args:
        folder: on that disk.
        needed: bytes.
        what: is to be written, for the message.

    Raises:
        DatasetError: less is free.
    """
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DatasetError(
            f"{folder}: {needed / 1e9:.1f} GB are needed for the {what}, {free / 1e9:.1f} GB are "
            "free on that disk; make room, or set results to a folder on another one"
        )


def _is_abandoned(folder: Path) -> bool:
    host, _, process = folder.name.rpartition("-")
    if host == socket.gethostname() and process.isdecimal():
        return not _runs(int(process))
    last_change = max(each.stat().st_mtime for each in (folder, *folder.iterdir()))
    return time.time() - last_change > _ABANDONED_SECONDS


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it runs, as another user
        pass
    return True
