"""Numbers and texts for people: times and sizes with a suitable unit, columns, escapes.

Each output format has one escape: `markdown` here, `dpsweep.figures.style.literal` for matplotlib,
`dpsweep.tables.text.latex`, and Jinja's own for HTML.
"""

import math
import re
import unicodedata
from collections.abc import Iterator, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any


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


def texts_in(content: Any) -> Iterator[str]:
    """Yield all texts in a content of YAML, keys too.

    >>> list(texts_in({"title": ["a", 1, ("b",)]}))
    ['title', 'a', 'b']
    """
    if isinstance(content, str):
        yield content
    elif isinstance(content, dict):
        yield from texts_in([*content, *content.values()])
    elif isinstance(content, list | tuple):
        for each in content:
            yield from texts_in(each)


# Characters of markup. Some are markup only in certain places: an underscore inside a word is not.
_MARKDOWN = re.compile(
    r"[`*~$|]"
    r"|(?<![^\W_])_|_(?![^\W_])"
    r"|\\(?=[!-/:-@\[-`{-~]|$)"
    r"|<(?=[A-Za-z/!?])"
    r"|&(?=#?\w+;)"
    r"|\](?=[(\[:])"
    # The start of a quotation, a heading, a list or a rule.
    r"|^(?:>|[#+=-](?=[#+=\-\s]|$))"
)


def one_line(text: str) -> str:
    r"""Return a text with spaces for line ends, and � for control characters and surrogates.

    >>> one_line("two\n lines\x07")
    'two lines�'
    """
    joined = " ".join(text.split())
    return "".join("�" if unicodedata.category(each) in ("Cc", "Cs") else each for each in joined)


def markdown(text: str) -> str:
    r"""Escape a text for GitHub's Markdown, for a line or a cell of a table.

    >>> markdown("a|b costs $5 and *more*")
    'a\\|b costs \\$5 and \\*more\\*'
    """
    escaped = _MARKDOWN.sub(r"\\\g<0>", one_line(text))
    return re.sub(r"^(\d+)([.)])(?=\s|$)", r"\1\\\2", escaped)


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
