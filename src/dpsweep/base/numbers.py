"""Numbers that a caller gives, looked at before they are compared with others."""

import operator
from numbers import Real


def real(name: str, value: object, error: type[Exception] = ValueError) -> float:
    """Return a number in float64.

    Args:
        name: what a message calls it.
        value: of the caller.
        error: what is raised.

    Raises:
        error: it is text, a truth value, None, or anything else that is no real number.
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
