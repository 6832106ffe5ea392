"""Checks of the type of numbers that callers give."""

import operator
from numbers import Real


def real(name: str, value: object, error: type[Exception] = ValueError) -> float:
    """Return a number in float64.

    Args:
        name: of the number, for the message.
        value: of the caller.
        error: the type of error to raise.

    Raises:
        error: the value is not a real number, for example text, a truth value or None.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise error(f"{name} = {value!r}: it must be a number")
    return float(value)


def integer(name: str, value: object, error: type[Exception] = ValueError) -> int:
    """Return an integer; see `real`."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise error(f"{name} = {value!r}: it must be an integer") from None
