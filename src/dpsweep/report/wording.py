"""Formats of amounts, shares and settings in the pages."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from dpsweep.study import Cell, Study
from dpsweep.study.cells import BatchSize, number
from dpsweep.study.clipping import RULES, ClippingBound
from dpsweep.tables.text import TextTable

# Longer cells are prose, which needs a wide column.
_PROSE = 40


def percent(fraction: float) -> str:
    """Write a fraction as a percentage with one decimal, or a dash for NaN."""
    return "–" if math.isnan(fraction) else f"{100 * fraction:.1f} %"


def values(numbers: Iterable[float | str]) -> str:
    """Write grid values as a list: 0.5, 1, 8, full."""
    return ", ".join("∞" if value == math.inf else number(value) for value in numbers)


def span(numbers: Sequence[float | str]) -> str:
    """Write grid values as a list or, if there are many, by their ends: 256 to full (9)."""
    if len(numbers) <= 3:
        return values(numbers)
    return f"{number(numbers[0])} to {number(numbers[-1])} ({len(numbers)})"


def bound_text(bound: ClippingBound) -> str:
    """Write a clipping bound, or the title of a rule without a bound: 0.1, AUTO-S, No clipping."""
    return RULES[bound].title if isinstance(bound, str) else number(bound)


def batch_text(size: BatchSize, examples: int) -> str:
    """Write a batch size, with the number of examples of the full batch: 256, full (1,347)."""
    return f"full ({examples:,})" if size == "full" else number(size)


def titles(study: Study, problem: str) -> dict[str, str]:
    """Return the titles of a problem's parts, by the columns of the tables."""
    parts = study.problems[problem]
    return {
        "Dataset": study.datasets[parts.dataset].title,
        "Backbone": study.backbones[parts.backbone].title,
        "Method": study.method_title(problem),
    }


def choice(best: "Mapping[Any, Any] | pd.Series[Any]") -> dict[str, str]:
    """Write a choice of `dpsweep.study.choice` and its accuracies, by the columns of the tables.

    ``Accuracy`` is the mean macro accuracy over the seeds that chose, ``Cross-fitted`` that over seeds
    that did not choose.
    """
    cell = Cell.parse(str(best["problem"]), str(best["cell"]))
    return {
        "ε": values([cell.epsilon]),
        "Epochs": str(cell.epochs),
        "C": bound_text(cell.clipping_bound),
        "B": batch_text(cell.batch_size, int(best["batch_size"])),
        "Learning rate": number(float(best["learning_rate"])),
        "Accuracy": percent(best["centre"]),
        "Lowest to highest": f"{100 * best['minimum']:.1f} to {percent(best['maximum'])}",
        "Cross-fitted": percent(best["cross_fitted"]),
        "Seeds": str(best["repeats"]),
    }


def column_kinds(table: TextTable) -> list[str]:
    """Return the kind of every column, which determines its width: number, prose or text."""
    return [
        "number"
        if kind == "r"
        else "prose"
        if any(len(row[place]) > _PROSE for row in table.rows)
        else "text"
        for place, kind in enumerate(table.columns)
    ]


def bar_shares(table: TextTable, columns: Iterable[str]) -> list[dict[int, float]]:
    """Return for every row the numbers of some columns as shares of the largest one, by position.

    Text in brackets behind a number is ignored.

    >>> table = TextTable(["B", "lost"], [["64", "0.5"], ["256", "2.0 (7)"], ["full", "–"]], "rr")
    >>> bar_shares(table, ["lost"])
    [{1: 0.25}, {1: 1.0}, {}]
    """
    places = [place for place, name in enumerate(table.header) if name in columns]
    known = [{i: float(row[i].split()[0]) for i in places if row[i] != "–"} for row in table.rows]
    largest = max((each for row in known for each in row.values()), default=0) or 1
    return [{i: round(each / largest, 3) for i, each in row.items()} for row in known]
