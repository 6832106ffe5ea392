"""Tables of the best accuracy of each selection, next to the number from a paper."""

import itertools
from pathlib import Path

import numpy as np
import pandas as pd

from dpsweep.analysis.frames import load_trials
from dpsweep.study import Study
from dpsweep.study.choice import choose
from dpsweep.study.paths import Paths
from dpsweep.study.table_targets import ComparisonTable
from dpsweep.tables.text import TextTable, group_starts, with_range

_OF_THE_CELL = [
    "problem", "epsilon", "epochs", "batch_size", "clipping", "clipping_bound", "learning_rate",
]  # fmt: skip
ACCURACY = ["macro_accuracy", "minimum", "maximum"]
"""Columns of the study's accuracy with its range."""
REFERENCE = ["reference", "reference_minimum", "reference_maximum"]
"""Columns of the paper's accuracy with its range."""


def accuracies_and_references(
    study: Study, paths: Paths, table: ComparisonTable, missing: list[Path] | None = None
) -> pd.DataFrame:
    """Return one row per entry: mean and range over repeats, the reference, and the difference.

    ``cross_fitted`` is the accuracy without optimism (`dpsweep.study.choice`); columns are compared by it.
    ``within_reference`` is True if the mean lies in the reference's range, and empty without a range.

    Args:
        study: the study that has the table.
        paths: its files.
        table: the table; its entries name the cells and the references.
        missing: absent files are added to it and left out. If it is None, they are an error.

    Raises:
        MissingResultsError: a cell has not been trained, and ``missing`` is None.
        UnreadableResultsError: a file lacks a column, or no trial is marked best.
    """
    rows = []
    for entry in table.entries:
        trials = load_trials(study, paths, study.cells(entry), missing)
        best = choose(trials, by=["problem"]).rename(columns={"centre": "macro_accuracy"})
        ours = best.iloc[0] if len(best) else pd.Series(dtype=object)
        mean = float(ours.get("macro_accuracy", np.nan))
        paper = entry.reference
        ranged = paper is not None and paper.minimum is not None and paper.maximum is not None
        rows.append(
            {
                **dict(zip(table.row_titles, entry.row, strict=True)),
                "column": entry.column,
                **{name: ours.get(name) for name in _OF_THE_CELL},
                "macro_accuracy": mean,
                **{name: ours.get(name, np.nan) for name in ("cross_fitted", "minimum", "maximum")},
                "repeats": ours.get("repeats", 0),
                "reference": paper.value if paper else np.nan,
                "reference_minimum": paper.minimum if paper else np.nan,
                "reference_maximum": paper.maximum if paper else np.nan,
                "difference": mean - paper.value if paper else np.nan,
                "within_reference": bool(paper.minimum <= mean <= paper.maximum)  # type: ignore[union-attr, operator]
                if ranged
                else None,
            }
        )
    return pd.DataFrame(rows)


def which_is_better(table: ComparisonTable, numbers: pd.DataFrame) -> str:
    """Return sentences that compare each two columns by accuracies without optimism; '' for one column."""
    rows = numbers.pivot_table(index=table.row_titles, columns="column", values="cross_fitted")
    columns = [name for name in dict.fromkeys(numbers["column"]) if name in rows]
    sentences = []
    for one, other in itertools.combinations(columns, 2):
        difference = (rows[other] - rows[one]).dropna()
        if len(difference):
            points = f"{100 * difference.mean():+.1f}".replace("-", "−")
            sentences.append(
                f"{other} has a higher accuracy than {one} in {(difference > 0).sum()} of "
                f"{len(difference)} rows (mean difference {points} points)"
            )
    listed = "; ".join(sentences)
    return f"Measured by seeds that did not choose: {listed}." if sentences else ""


def show(table: ComparisonTable, numbers: pd.DataFrame) -> TextTable:
    """Lay out rows and columns as in the entries, with a paper's column next to each with a reference."""
    rounding = (numbers["reference"] - numbers["reference"].round(3)).abs().max()
    decimals = 4 if rounding > 1e-9 else 3
    columns: dict[str, tuple[str, list[str]]] = {}
    for column in numbers["column"].unique():
        columns[column] = (column, ACCURACY)
        if numbers.loc[numbers["column"] == column, "reference"].notna().any():
            columns[f"{column} (paper)"] = (column, REFERENCE)
    rows = []
    for key, entries in numbers.groupby(table.row_titles, sort=False):
        of_column = entries.drop_duplicates("column").set_index("column")
        row = [str(each) for each in key]
        for column, names in columns.values():
            known = column in of_column.index
            written = of_column.loc[column, names] if known else [np.nan] * 3
            row.append(with_range(*written, decimals=decimals))
        rows.append(row)
    return TextTable(
        header=[*table.row_titles, *columns],
        rows=rows,
        columns=["l"] * len(table.row_titles) + ["r"] * len(columns),
        groups=group_starts([row[0] for row in rows]) if len(table.row_titles) > 1 else frozenset(),
        size="footnotesize",
        note=which_is_better(table, numbers),
    )
