"""How a table is made of rows, and put into its place in a page."""

import math
from collections.abc import Sequence
from typing import Any

END = "<!-- end of table -->"


def line(cells: Sequence[str]) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def grid(head: list[str], rows: list[list[str]]) -> list[str]:
    """A Markdown table whose columns but the first are numbers."""
    return _table(head, ["---", *["---:"] * (len(head) - 1)], rows)


def texts(head: list[str], rows: list[list[str]]) -> list[str]:
    """A Markdown table without numbers."""
    return _table(head, ["---"] * len(head), rows)


def _table(head: list[str], alignment: list[str], rows: list[list[str]]) -> list[str]:
    return [line(head), f"|{'|'.join(alignment)}|", *map(line, rows)]


def short(value: float) -> str:
    """A clipping bound or a norm in three digits."""
    return "∞" if math.isinf(value) else f"{value:.3g}"


def where(environment: dict[str, Any]) -> str:
    """One line about what was measured with what."""
    versions = ", ".join(f"{name} {number}" for name, number in environment["versions"].items())
    device = f"{environment['device']}, " if "device" in environment else ""
    load = environment.get("load_before")
    return (
        f"Measured on {device}Python {environment['python']}, {versions}"
        + (f"; load of the machine before the run: {load}" if load is not None else "")
        + "."
    )


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
