"""Folders for work that may be interrupted and resumed, also while others do the same work."""

import contextlib
import os
import shutil
import socket
import time
from pathlib import Path

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


def _is_abandoned(folder: Path) -> bool:
    host, _, process = folder.name.rpartition("-")
    if host == socket.gethostname():
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
