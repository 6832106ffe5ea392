"""End a training process in an orderly way when told to, and let it reach no other machine.

While `watched` is active, SIGTERM and SIGUSR1 only leave a note. The running trial reads it at
its next step, saves its state and raises `Interrupted`, which ends the process:

* SIGUSR1 announces a time limit (Slurm's ``--signal``): exit status 75, *call me again*;
* SIGTERM ends the job for good (scancel, preemption, shutdown): exit status 143.

In both cases the next call of the same cell goes on from the step that was saved. SIGINT ends the job at
once, and the next call goes on from the last checkpoint.

Compute nodes often have no network, and a job must not wait. Datasets and weights are fetched when
they are prepared. A library that tries to ask for more while a trial runs (a newer revision, a missing
file, statistics of use) meets a `NetworkRefusedError` after `refuse_network`.
"""

import logging
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

log = logging.getLogger(__name__)

EXIT_AGAIN = 75
"""Exit status (EX_TEMPFAIL): state is saved, and the same command will go on from it."""

EXIT_TERMINATED = 128 + signal.SIGTERM
"""Exit status of a process that was told to end."""

_CONNECTING = frozenset({"socket.connect", "socket.getaddrinfo", "socket.gethostbyname"})

_received: signal.Signals | None = None


class Interrupted(SystemExit):
    """Ends the process with the status that tells why; no error is printed."""


@contextmanager
def watched() -> Iterator[None]:
    """Take SIGTERM and SIGUSR1 as a note for `interruption` (main thread only)."""

    def note(number: int, _frame: FrameType | None) -> None:
        global _received  # noqa: PLW0603 (a signal is an event of the whole process)
        # Who must end for good does not come back, whatever else arrives.
        if _received != signal.SIGTERM:
            _received = signal.Signals(number)

    global _received  # noqa: PLW0603
    _received = None
    before = {each: signal.signal(each, note) for each in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        yield
    except Interrupted as stop:
        log.info(
            "stopped by %s, exit status %s", _received.name if _received else "request", stop.code
        )
        raise
    except KeyboardInterrupt:
        log.info("stopped by SIGINT, exit status %s", 128 + signal.SIGINT)
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _received = None


def interruption(*, saved: bool) -> Interrupted | None:
    """Return the exception to raise once a signal asks to stop, or None before that.

    Args:
        saved: whether this process has brought a trial forward. If it has not, a call with the
            same time would fare no better, so the status is not `EXIT_AGAIN`.
    """
    if _received is None:
        return None
    again = saved and _received == signal.SIGUSR1
    return Interrupted(EXIT_AGAIN if again else EXIT_TERMINATED)


class NetworkRefusedError(OSError):
    """A training job tried to reach another machine."""


def refuse_network() -> None:
    """Refuse every connection that Python code of this process tries to open from now on.

    Sockets within this machine that have no address (``AF_UNIX``) stay possible.
    """
    sys.addaudithook(_refuse)


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in _CONNECTING:
        return
    if event == "socket.connect" and arguments[0].family == socket.AF_UNIX:
        return
    raise NetworkRefusedError(
        f"{event} {arguments[-1] if event == 'socket.connect' else arguments[0]}: a training job "
        "reads prepared files only; fetch what it needs with prepare-dataset or prepare-backbone"
    )
