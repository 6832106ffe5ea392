"""Untrusted computations in a separate process, without network and with limited time and memory."""

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
"""Limit of the processor time of a call. Clock time would fail honest computations on a busy machine."""
_WAITING = 6
"""Limit of the clock time, as a multiple of the processor time; stops computations that only wait."""
MEMORY = 4 * 2**30
"""Limit of the additional memory of a call, bytes."""
_LOOK_SECONDS = 0.05

# Audit events of actions outside the process.
_REFUSED = (
    *("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"),
    *("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty"),
)


class LimitError(DpsweepError):
    """A computation that failed, exceeded its time or memory, or acted outside its process."""


class TimeLimitError(LimitError):
    """A computation that exceeded its time."""


def limited(compute: Callable[[], Any], seconds: float | None = None) -> Any:
    """Call a function in a fork of this process, and return its result.

    The function may not open connections, start programs, or open files outside Python's packages.
    Import its modules before: imports in the fork count as processor time.

    Args:
        compute: a function with a result that JSON can represent.
        seconds: limit of the processor time; `SECONDS` by default.

    Raises:
        LimitError: the function raised an error, or exceeded its time or `MEMORY`.
    """
    reader, writer = os.pipe()
    with warnings.catch_warnings(action="ignore"):  # the child waits for no other thread
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
    """Return the output of a process; raise an error when it exceeds its limits."""
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
        with suppress(psutil.Error):  # the process has just ended
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
    """Tell whether a path (not an open file) lies outside the folders that Python imports from."""
    if not isinstance(path, str | bytes | os.PathLike):
        return False
    roots = (sys.prefix, sys.base_prefix, *filter(None, sys.path))
    return not os.path.abspath(os.fsdecode(path)).startswith(roots)  # noqa: PTH100 (the file may be missing)
