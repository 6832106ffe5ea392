"""Small tables of text, and how numbers are written in them."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dpsweep.study.cells import number

# Cells longer than this are sentences, which need a wide column.
_PROSE = 40


@dataclass(frozen=True)
class Grid:
    """A table of text, of which the page shows every row; ``numeric`` columns are flush right."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: frozenset[str] = frozenset()

    def kind(self, column: int) -> str:
        """How a column is set: number, prose or text."""
        if self.columns[column] in self.numeric:
            return "number"
        return "prose" if any(len(row[column]) > _PROSE for row in self.rows) else "text"


def count(amount: int, noun: str, plural: str | None = None) -> str:
    """An amount with its noun: 1 trial, 1,234 trials."""
    return f"{amount:,} {noun if amount == 1 else plural or noun + 's'}"


def percent(fraction: float) -> str:
    """A fraction of one as a percentage with one decimal; a dash where there is no number."""
    return "–" if math.isnan(fraction) else f"{100 * fraction:.1f} %"


def values(numbers: Iterable[float | str]) -> str:
    """Grid values as a list: 0.5, 1, 8, full."""
    return ", ".join("∞" if value == math.inf else number(value) for value in numbers)


def span(numbers: Sequence[float | str]) -> str:
    """Grid values by their ends where there are many: 256 to full (9)."""
    if len(numbers) <= 3:
        return values(numbers)
    return f"{number(numbers[0])} to {number(numbers[-1])} ({len(numbers)})"
