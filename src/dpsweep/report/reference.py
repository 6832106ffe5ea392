"""Comparison of the study's numbers with those that the paper prints."""

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from dpsweep.base.units import count
from dpsweep.study import Study
from dpsweep.study.paths import Paths
from dpsweep.tables.comparison import ACCURACY, REFERENCE, ComparisonTable
from dpsweep.tables.text import TextTable, signed, with_range


@dataclass(frozen=True)
class PaperComparison:
    """Comparison of a table with the paper's: a summary, and rows if there are any."""

    name: str
    finding: str
    rows: TextTable | None = None


def paper_comparisons(study: Study, paths: Paths) -> list[PaperComparison]:
    """Compare the CSV of every comparison table with the study's references."""
    return [
        _comparison(paths, name, table)
        for name, table in study.tables.items()
        if isinstance(table, ComparisonTable) and study.reference_values
    ]


def _comparison(paths: Paths, name: str, table: ComparisonTable) -> PaperComparison:
    if not any(entry.reference for entry in table.entries):
        return PaperComparison(
            name,
            "Not compared: the data and the models of this study are not the paper's, so a difference "
            "would say nothing.",
        )
    texts = dict.fromkeys([*table.row_titles, "column"], str)
    try:
        numbers = pd.read_csv(paths.table(name, "csv"), dtype=texts)
    except FileNotFoundError:
        return PaperComparison(name, "Not compared yet: the table has not been written.")
    numbers = numbers[numbers["reference"].notna()]
    ranged = bool(numbers["reference_minimum"].notna().any())
    rows = [
        {title: str(row[title]) for title in table.row_titles}
        | {
            "Setting": str(row["column"]),
            "Paper": with_range(*(row[name] for name in REFERENCE), decimals=4),
            "Ours": with_range(*(row[name] for name in ACCURACY), decimals=4),
            "Difference": signed(row["difference"], 4),
        }
        | ({"In range": _within(row)} if ranged else {})
        for row in numbers.to_dict("records")
    ]
    kinds = "l" * len(table.row_titles) + "lrrrl"[: 4 + ranged]
    return PaperComparison(name, _finding(numbers), TextTable.of(rows, kinds))


def _finding(numbers: pd.DataFrame) -> str:
    known = numbers[numbers["macro_accuracy"].notna()]
    if known.empty:
        return "Not compared yet: nothing has been trained."
    differences = known["difference"]
    text = (
        f"{len(known)} of {count(len(numbers), 'number')} can be compared. Ours minus the paper's: "
        f"mean {signed(differences.mean(), 4)}, from {signed(differences.min(), 4)} to "
        f"{signed(differences.max(), 4)}."
    )
    ranged = known[known["reference_minimum"].notna()]
    if len(ranged):
        inside = int((ranged["within_reference"].astype(str) == "True").sum())
        text += (
            f" {inside} of {len(ranged)} of our means lie within the range that the paper prints."
        )
    return text


def _within(row: Mapping[Hashable, Any]) -> str:
    if math.isnan(row["reference_minimum"]) or math.isnan(row["macro_accuracy"]):
        return "–"
    return "yes" if str(row["within_reference"]) == "True" else "no"
