"""Markdown tables from rows, and their insertion into pages."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

END = "<!-- end of table -->"


def grid(heads: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = True) -> list[str]:
    """Return the lines of a Markdown table; ``numbers`` right-aligns all columns but the first."""
    alignment = ["---", *["---:" if numbers else "---"] * (len(heads) - 1)]
    lines = [f"| {' | '.join(cells)} |" for cells in (heads, *rows)]
    return [lines[0], f"|{'|'.join(alignment)}|", *lines[1:]]


def columns(
    of: Mapping[str, str | Callable[[Any], str]], rows: Iterable[Any], **options: bool
) -> list[str]:
    """Return a table of records.

    Args:
        of: for the head of each column, a format of a row's fields or a function of the row.
        rows: mappings.
        options: of `grid`.
    """
    cells = [
        [each.format_map(row) if isinstance(each, str) else each(row) for each in of.values()]
        for row in rows
    ]
    return grid(list(of), cells, **options)


def interval(value: float | None, lower: float, upper: float, form: str = ".2f") -> str:
    """Format a number with its interval; without an interval if the ends are NaN."""
    if value is None or math.isnan(value):
        return ""
    text = f"{value:{form}}"
    return minus(text if math.isnan(lower) else f"{text} [{lower:{form}}, {upper:{form}}]")


def minus(text: str) -> str:
    """Replace hyphens by minus signs."""
    return text.replace("-", "−")


def short(value: float) -> str:
    """Format a clipping bound or a norm with three digits."""
    return "∞" if math.isinf(value) else f"{value:.3g}"


def describe_environment(environment: dict[str, Any]) -> str:
    """Describe device, versions and load of a measurement on one line."""
    versions = ", ".join(f"{name} {number}" for name, number in environment["versions"].items())
    device = f"{environment['device']}, " if "device" in environment else ""
    load = environment.get("load_before")
    under = f"; load of the machine before the run: {load}" if load is not None else ""
    return f"Measured on {device}Python {environment['python']}, {versions}{under}."


def start(name: str) -> str:
    """Return the comment before a table."""
    return f"<!-- table: {name} -->\n"


def filled(document: str, lines: dict[str, list[str]]) -> str:
    """Return the document with all its tables replaced by the given lines."""
    for name, table in lines.items():
        before, found, rest = document.partition(start(name))
        if found:
            _, _, after = rest.partition(END)
            document = before + found + "\n".join(table) + "\n" + END + after
    return document
