"""Times, sizes and counts as text with a suitable unit, and tables of text."""

import math
from collections.abc import Sequence


def duration(seconds: float) -> str:
    """Format a time: 0 s, 0.4 s, 40 s, 12 min, 3.4 h, 1,288 h. Times between 0 and 0.1 s become 0.1 s.

    >>> duration(5), duration(600), duration(90_000)
    ('5.0 s', '10 min', '25 h')
    """
    if 0 < seconds < 9.95:
        return f"{max(seconds, 0.1):.1f} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 9.95 else f"{math.ceil(hours):,} h"


def size(number_of_bytes: float) -> str:
    """Format a size on disk: 0.3 MB, 55.3 MB, 1.4 GB.

    >>> size(2_500_000)
    '2.5 MB'
    """
    if number_of_bytes >= 1e8:
        return f"{number_of_bytes / 1e9:.1f} GB"
    return f"{number_of_bytes / 1e6:.1f} MB"


def count(amount: int, noun: str, plural: str | None = None) -> str:
    """Format an amount with its noun.

    >>> count(1, "trial"), count(1234, "trial"), count(0, "class", "classes")
    ('1 trial', '1,234 trials', '0 classes')
    """
    return f"{amount:,} {noun if amount == 1 else plural or noun + 's'}"


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Format a table as lines of text: the first column is left-aligned, the others right-aligned.

    >>> columns([("", "cells"), ("pets", "12")])
    ['      cells', 'pets     12']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([first.ljust(widths[0]), *map(str.rjust, rest, widths[1:])])
        for first, *rest in rows
    ]
