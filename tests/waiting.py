"""Other processes: running commands, and waiting for conditions on machines of any speed."""

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import psutil

PATIENCE = 3600.0
"""Seconds to wait for a condition: a test machine can be slow and busy."""

Found = TypeVar("Found")


class Running(Protocol):
    """A process: `subprocess.Popen`, or one that was forked."""

    def poll(self) -> int | None:
        """Return the exit status, None while it runs."""


def wait_for(
    condition: Callable[[], Found], what: str, run: Running | None = None, every: float = 0.05
) -> Found:
    """Wait until a condition returns something true, and return that.

    Args:
        condition: called again and again.
        what: a name for it, for the error.
        run: the process that makes it true; the end of the process is an error.
        every: seconds between two calls.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        ended = (
            run is not None and run.poll() is not None
        )  # before the call: its last action can make the condition true
        if found := condition():
            return found
        assert not ended, f"it ended without {what}"
        assert time.monotonic() < deadline, f"no {what} after {PATIENCE:.0f} s"
        time.sleep(every)


def called(
    command: Sequence[str | Path],
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    status: int | None = 0,
) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end.

    Args:
        command: its words.
        folder: where it runs; by default the current folder.
        environment: by default that of the tests.
        status: the exit status that it must have; None accepts any.
    """
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, encoding="utf-8", check=False
    )
    assert status is None or done.returncode == status, done.stdout + done.stderr
    return done


def running(pid: int) -> bool:
    """Return whether a process exists and has not ended."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    return [child.pid for child in psutil.Process(pid).children()]
