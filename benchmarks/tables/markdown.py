"""How a table is made of rows, and put into its place in a page."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

END = "<!-- end of table -->"


def grid(heads: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = True) -> list[str]:
    """Return the lines of a Markdown table; columns but the first are numbers, unless said otherwise."""
    alignment = ["---", *["---:" if numbers else "---"] * (len(heads) - 1)]
    lines = [f"| {' | '.join(cells)} |" for cells in (heads, *rows)]
    return [lines[0], f"|{'|'.join(alignment)}|", *lines[1:]]


def columns(
    of: Mapping[str, str | Callable[[Any], str]], rows: Iterable[Any], **options: bool
) -> list[str]:
    """Return a table of records.

    Args:
        of: by the head of each column what a row has there, as a format of its fields or a function of it.
        rows: mappings.
        options: of `grid`.
    """
    cells = [
        [each.format_map(row) if isinstance(each, str) else each(row) for each in of.values()]
        for row in rows
    ]
    return grid(list(of), cells, **options)


def interval(value: float | None, lower: float, upper: float, form: str = ".2f") -> str:
    """A number with its interval, as far as there is one."""
    if value is None or math.isnan(value):
        return ""
    text = f"{value:{form}}"
    return minus(text if math.isnan(lower) else f"{text} [{lower:{form}}, {upper:{form}}]")


def minus(text: str) -> str:
    """The text with a minus sign for every hyphen."""
    return text.replace("-", "−")


def short(value: float) -> str:
    """A clipping bound or a norm in three digits."""
    return "∞" if math.isinf(value) else f"{value:.3g}"


def where(environment: dict[str, Any]) -> str:
    """One line about what was measured with what."""
    versions = ", ".join(f"{name} {number}" for name, number in environment["versions"].items())
    device = f"{environment['device']}, " if "device" in environment else ""
    load = environment.get("load_before")
    under = f"; load of the machine before the run: {load}" if load is not None else ""
    return f"Measured on {device}Python {environment['python']}, {versions}{under}."


def start(name: str) -> str:
    """The comment before a table."""
    return f"<!-- table: {name} -->\n"


def filled(document: str, lines: dict[str, list[str]]) -> str:
    """The document with every table that it has a place for as the results have it."""
    for name, table in lines.items():
        before, found, rest = document.partition(start(name))
        if found:
            _, _, after = rest.partition(END)
            document = before + found + "\n".join(table) + "\n" + END + after
    return document
