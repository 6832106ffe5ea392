"""Training reads prepared files only: compute nodes often have no network, and a job must not wait.

Datasets and weights are fetched when they are prepared. A library that tries to ask for more while
a trial runs (a newer revision, a missing file, statistics of use) meets an error instead.
"""

import socket
import sys
from typing import Any

_CONNECTING = frozenset({"socket.connect", "socket.getaddrinfo", "socket.gethostbyname"})


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
