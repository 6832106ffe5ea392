"""Errors that the user can fix, checks of numbers that raise them, and the log."""

import logging
import math
import operator
import sys
from numbers import Real
from pathlib import Path


class DpsweepError(Exception):
    """An error outside the code. The message describes the cause and the remedy.

    The command line prints the message without a traceback, then a command that makes ``remake`` again.

    Args:
        message: for the user.
        remake: outputs of the study (files or rules) that must be made, or made again.
    """

    def __init__(self, message: str, remake: tuple[Path | str, ...] = ()) -> None:
        super().__init__(message)
        self.remake = remake


def real(
    name: str, value: object, error: type[Exception] = ValueError, least: float | None = None
) -> float:
    """Return a number in float64.

    Args:
        name: of the number, for the message.
        value: of the caller.
        error: the type of error to raise.
        least: the smallest value that is allowed, of finite ones.

    Raises:
        error: the value is not a real number, for example text, a truth value or None; or with ``least`` it
            is smaller, infinite or NaN.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise error(f"{name} = {value!r}: it must be a number")
    found = float(value)
    if least is not None and not least <= found < math.inf:
        raise error(f"{name} = {value}: it must be finite and at least {least}")
    return found


def integer(
    name: str, value: object, error: type[Exception] = ValueError, least: float = -math.inf
) -> int:
    """Return an integer.

    Args:
        name: see `real`.
        value: see `real`.
        error: see `real`.
        least: the smallest value that is allowed.

    Raises:
        error: the value is not an integer, or below ``least``.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        found = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise error(f"{name} = {value!r}: it must be an integer") from None
    if found < least:
        raise error(f"{name} = {found}: it must be at least {least}")
    return found


def start_log(level: int) -> None:
    """Write dpsweep's messages of at least some level, and other libraries' warnings and errors."""
    # `force` replaces the handlers that some libraries install.
    logging.basicConfig(
        format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr, force=True
    )
    logging.getLogger("dpsweep").setLevel(level)
