"""Best accuracy of each selection, and beside it the number that a paper prints."""

import itertools
from pathlib import Path

import numpy as np
import pandas as pd

from dpsweep.analysis.frames import load_trials
from dpsweep.figures.tables.text import TextTable, group_starts
from dpsweep.study import Study
from dpsweep.study.choice import choose
from dpsweep.study.paths import Paths
from dpsweep.study.table_targets import ComparisonTable

_OF_THE_CELL = [
    "problem", "epsilon", "epochs", "batch_size", "clipping", "clipping_bound", "learning_rate",
]  # fmt: skip


def accuracies_and_references(
    study: Study, paths: Paths, table: ComparisonTable, missing: list[Path] | None = None
) -> pd.DataFrame:
    """One row per entry: our mean and range over repeats, the reference, and the difference.

    ``cross_fitted`` is the accuracy without optimism (`dpsweep.study.choice`), which compares the columns.

    ``within_reference`` says whether our mean lies in the reference's range; it is empty where the
    reference has none.

    Args:
        study: the study that has the table.
        paths: where its results lie.
        table: whose entries name the cells, and the references.
        missing: absent files are added to it and left out. Where it is None, they are an error.

    Raises:
        MissingResultsError: a cell has not been trained, and ``missing`` is None.
        UnreadableResultsError: a file does not hold what it should.
    """
    rows = []
    for entry in table.entries:
        trials = load_trials(paths, study.cells(entry), missing)
        best = choose(trials, by=["problem"])
        ours = best.iloc[0] if len(best) else pd.Series(dtype=object)
        mean = float(ours.get("centre", np.nan))
        paper = entry.reference
        ranged = paper is not None and paper.minimum is not None and paper.maximum is not None
        rows.append(
            {
                **dict(zip(table.row_titles, entry.row, strict=True)),
                "column": entry.column,
                **{name: ours.get(name) for name in _OF_THE_CELL},
                "macro_accuracy": mean,
                "cross_fitted": ours.get("cross_fitted", np.nan),
                "minimum": ours.get("minimum", np.nan),
                "maximum": ours.get("maximum", np.nan),
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
    """Compare the columns, two by two, by accuracies without optimism; empty for one column."""
    rows = numbers.pivot_table(index=table.row_titles, columns="column", values="cross_fitted")
    columns = [name for name in dict.fromkeys(numbers["column"]) if name in rows]
    said = []
    for one, other in itertools.combinations(columns, 2):
        difference = (rows[other] - rows[one]).dropna()
        if len(difference):
            points = f"{100 * difference.mean():+.1f}".replace("-", "−")
            said.append(
                f"{other} is better than {one} in {(difference > 0).sum()} of {len(difference)} rows "
                f"(mean difference {points} points)"
            )
    return f"Measured by seeds that did not choose: {'; '.join(said)}." if said else ""


def show(table: ComparisonTable, numbers: pd.DataFrame) -> TextTable:
    """Rows and columns as the entries name them; a column for the paper where it has a number."""
    columns = list(dict.fromkeys(numbers["column"]))
    referred = {
        column: bool(numbers.loc[numbers["column"] == column, "reference"].notna().any())
        for column in columns
    }
    decimals = 4 if _needs_four(numbers["reference"].dropna()) else 3
    header = list(table.row_titles)
    for column in columns:
        header += [column, f"{column} (paper)"] if referred[column] else [column]
    keys = numbers[table.row_titles].drop_duplicates()
    rows = []
    for key in keys.to_numpy().tolist():
        row = list(key)
        mine = numbers[(numbers[table.row_titles] == key).all(axis=1)]
        for column in columns:
            entry = mine[mine["column"] == column]
            row.append(_written(entry, ["macro_accuracy", "minimum", "maximum"], decimals))
            if referred[column]:
                paper = ["reference", "reference_minimum", "reference_maximum"]
                row.append(_written(entry, paper, decimals))
        rows.append(row)
    first = [row[0] for row in rows]
    return TextTable(
        header=header,
        rows=rows,
        columns=["l"] * len(table.row_titles) + ["r"] * (len(header) - len(table.row_titles)),
        groups=group_starts(first) if len(table.row_titles) > 1 else frozenset(),
        size="footnotesize",
    )


def _needs_four(values: "pd.Series[float]") -> bool:
    return bool((values.round(3) - values).abs().max() > 1e-9) if len(values) else False


def _written(entry: pd.DataFrame, names: list[str], decimals: int) -> str:
    if entry.empty or pd.isna(entry[names[0]].iloc[0]):
        return "–"
    middle, low, high = (entry[name].iloc[0] for name in names)
    text = f"{middle:.{decimals}f}"
    return text if pd.isna(low) else f"{text} [{low:.{decimals}f}, {high:.{decimals}f}]"
