"""Untrusted computations in a separate process, with limited time and memory."""

import json
import math
import multiprocessing
import resource
import signal
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import psutil

from dpsweep.base.errors import DpsweepError

SECONDS = 5
"""Limit of the processor time of a call. Clock time would fail honest computations on a busy machine."""
_WAITING = 6
"""Limit of the clock time, as a multiple of the processor time; stops computations that only wait."""
MEMORY = 4 * 2**30
"""Limit of the additional memory of a call, bytes."""


class LimitError(DpsweepError):
    """A computation that failed, or exceeded its time or memory."""


class TimeLimitError(LimitError):
    """A computation that exceeded its time."""


def run_limited(compute: Callable[[], Any], seconds: float | None = None) -> Any:
    """Call a function in a fork of this process, and return its result.

    Import its modules before: imports in the fork count as processor time.

    Args:
        compute: a function with a result that JSON can represent.
        seconds: limit of the processor time, rounded up; `SECONDS` by default.

    Raises:
        LimitError: the function raised an error, or exceeded its time or `MEMORY`.
    """
    allowed = math.ceil(SECONDS if seconds is None else seconds)
    reader, writer = multiprocessing.Pipe(duplex=False)
    fork = multiprocessing.get_context("fork")
    child = fork.Process(target=_serve, args=(compute, writer, allowed))
    with warnings.catch_warnings(action="ignore"):  # the child waits for no other thread
        child.start()
    writer.close()
    try:
        if not reader.poll(_WAITING * allowed):
            raise TimeLimitError(f"takes more than {_WAITING * allowed} seconds")
        found = json.loads(reader.recv_bytes())
    except EOFError:
        child.join()
        if child.exitcode == -signal.SIGXCPU:
            raise TimeLimitError(f"takes more than {allowed} seconds") from None
        raise LimitError("ends its process") from None
    finally:
        child.kill()
        child.join()
    if "error" in found:
        raise LimitError(found["error"])
    return found["value"]


def _serve(compute: Callable[[], Any], writer: Connection, seconds: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    memory = psutil.Process().memory_info().vms + MEMORY
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    within = memory if most == resource.RLIM_INFINITY else min(memory, most)
    resource.setrlimit(resource.RLIMIT_AS, (within, most))
    try:
        answer = {"value": compute()}
    except MemoryError:
        answer = {"error": f"takes more than {MEMORY / 2**30:g} GiB of memory"}
    except Exception as error:  # of any kind
        known = isinstance(error, DpsweepError)
        answer = {"error": str(error) if known else f"{type(error).__name__}: {error}"}
    writer.send_bytes(json.dumps(answer).encode())
