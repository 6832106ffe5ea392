"""Checks of the type of numbers that callers give, and decimals that bound a number."""

import math
import operator
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
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


def rounded_up(number: float, digits: int = 6) -> str:
    """Write a number with a few digits, never below it: a stated epsilon must hold.

    >>> rounded_up(8.0000004), rounded_up(8.0), rounded_up(2e-5)
    ('8.00001', '8', '2e-05')
    """
    return _rounded(number, digits, ROUND_CEILING)


def rounded_down(number: float, digits: int = 6) -> str:
    """Write a number with a few digits, never above it: who takes a promised rest must get it.

    >>> rounded_down(2.9996, digits=3), rounded_down(3.0)
    ('2.99', '3')
    """
    return _rounded(number, digits, ROUND_FLOOR)


def _rounded(number: float, digits: int, rounding: str) -> str:
    # The shortest decimal of a float stands for it: 0.1 stays 0.1.
    decimal = Context(prec=digits, rounding=rounding).create_decimal(Decimal(repr(float(number))))
    return f"{float(decimal):.{digits}g}"
