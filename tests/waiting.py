"""Other processes: calling them, whether they run, and waiting for them on machines of any speed."""

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import psutil

PATIENCE = 3600.0
"""Seconds to wait for anything: a test machine may be cold, slow and busy."""

Found = TypeVar("Found")


class Running(Protocol):
    """A process: `subprocess.Popen`, or one that was forked."""

    def poll(self) -> int | None:
        """The exit status, None while it runs."""


def wait_for(
    condition: Callable[[], Found], what: str, run: Running | None = None, every: float = 0.05
) -> Found:
    """Wait until a condition holds, and return what it found.

    Args:
        condition: asked again and again, until it returns something true.
        what: a name for it, for the error.
        run: the process that brings it about; its end is an error.
        every: seconds between two looks.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        ended = run is not None and run.poll() is not None  # its last act may be what is waited for
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
        folder: where it runs; by default here.
        environment: by default that of the tests.
        status: what it must end with; None takes any.
    """
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, encoding="utf-8", check=False
    )
    assert status is None or done.returncode == status, done.stdout + done.stderr
    return done


def running(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    return [child.pid for child in psutil.Process(pid).children()]
