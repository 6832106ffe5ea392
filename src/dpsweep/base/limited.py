"""Run what somebody else has chosen in a process of its own: no network, little time and memory."""

import json
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psutil

from dpsweep.base.errors import DpsweepError

SECONDS = 5
"""Processor time of a call: a busy machine makes no honest computation fail."""
_WAITING = 6
"""Times as long by the clock, for a computation that waits for something, which none should."""
MEMORY = 4 * 2**30
"""Bytes that a call may add."""
_LOOK_SECONDS = 0.05

# What reaches out of the process: none of it is asked of a computation.
_REFUSED = (
    *("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"),
    *("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty"),
)


class LimitError(DpsweepError):
    """A computation that failed, took too much time or memory, or reached out of its process."""


class TimeLimitError(LimitError):
    """A computation that took too much time."""


def limited(compute: Callable[[], Any], seconds: float | None = None) -> Any:
    """Return what a function returns in a fork of this process, which ends with it.

    In the fork a connection, another program, and a file that is not of Python's own packages are errors.
    Import what the function needs before: it counts for the time.

    Args:
        compute: returns what JSON can hold.
        seconds: of processor time; `SECONDS` by default.

    Raises:
        LimitError: the function raised an error, or exceeded its time or `MEMORY`.
    """
    reader, writer = os.pipe()
    with warnings.catch_warnings(action="ignore"):  # of other threads, none of which it waits for
        child = os.fork()
    if child == 0:
        with suppress(BaseException):
            os.close(reader)
            _serve(compute, writer)
        os._exit(1)
    os.close(writer)
    try:
        answer = _answer(child, reader, SECONDS if seconds is None else seconds)
    finally:
        os.close(reader)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if not answer:
        raise LimitError("ends its process")
    found = json.loads(answer)
    if "error" in found:
        raise LimitError(found["error"])
    return found["value"]


def _answer(child: int, reader: int, seconds: float) -> bytes:
    """Wait for what a process writes, as long as it keeps within its limits."""
    end, answer, process = time.monotonic() + _WAITING * seconds, b"", psutil.Process(child)
    most = process.memory_info().rss + MEMORY
    while True:
        ready, _, _ = select.select([reader], [], [], _LOOK_SECONDS)
        if ready:
            part = os.read(reader, 2**20)
            if not part:
                return answer
            answer += part
        slow = time.monotonic() > end
        with suppress(psutil.Error):  # it has just ended
            used = process.cpu_times()
            if slow or used.user + used.system > seconds:
                raise TimeLimitError(f"takes more than {seconds:g} seconds")
            if process.memory_info().rss > most:
                raise LimitError(f"takes more than {MEMORY / 2**30:g} GiB of memory")


def _serve(compute: Callable[[], Any], writer: int) -> None:
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    sys.addaudithook(_refuse)
    try:
        answer = {"value": compute()}
    except DpsweepError as error:
        answer = {"error": str(error)}
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    with os.fdopen(writer, "wb") as stream:
        stream.write(json.dumps(answer).encode())
    os._exit(0)


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _REFUSED or (event == "open" and _is_foreign(arguments[0])):
        raise PermissionError(f"found {event}, which nothing here needs")


def _is_foreign(path: object) -> bool:
    """Whether a file is neither open already nor one that Python imports."""
    if not isinstance(path, str | bytes | os.PathLike):
        return False
    roots = (sys.prefix, sys.base_prefix, *filter(None, sys.path))
    return not os.path.abspath(os.fsdecode(path)).startswith(roots)  # noqa: PTH100 (no file need be there)
