"""The table of the paper's tuning rules with the evidence of the study (Table 1)."""

from pathlib import Path

import pandas as pd

from dpsweep.analysis.evidence import (
    FEWEST_DATASETS,
    FEWEST_UNITS,
    compare,
    comparison_table,
    evidence_table,
)
from dpsweep.analysis.frames import load_trials
from dpsweep.analysis.grids import grids
from dpsweep.config.datasets import related_datasets
from dpsweep.study import Study
from dpsweep.study.paths import Paths
from dpsweep.study.table_targets import TuningImplications
from dpsweep.tables.text import TextTable, group_starts, interval, signed, with_range

NOTE = (
    "An effect is the accuracy, in percentage points, that the rule gains: the setting is tuned under the"
    " harder condition once on the rule's side of the value that was best under the easier one, and once "
    "on the other side; seeds that measure do not choose, and what noise alone would make of it is "
    "subtracted (bootstrap). It is zero where there is nothing to gain, and positive where the rule is "
    "right. A comparison is a series of grids that differ in the condition alone and share no trial with "
    "another. In brackets t intervals that all hold together with 95 %: for this study, with problems or "
    "pairs of problems as units, and for other datasets, with datasets as units (those that share "
    "examples, or are compared with each other, count as one). Supported, contradicted: the interval is "
    "beyond the margin, the smallest effect worth speaking of, and beyond the standard error of the value"
    " that was best under the easier condition, and so are most units beyond the margin; no difference: "
    "interval and most units are within the margin; “here”: for this study only. A verdict needs "
    f"{FEWEST_UNITS} units, one for other datasets {FEWEST_DATASETS} datasets. Visible: the smallest true "
    "effect that this study would have found with a probability of 80 %."
)
"""The explanation of the columns, below the caption."""


def evidence_and_comparisons(
    study: Study, paths: Paths, table: TuningImplications, missing: list[Path] | None = None
) -> dict[str, pd.DataFrame]:
    """Return one row per rule, and one row per comparison; see `dpsweep.analysis.evidence`.

    Args:
        study: the study that has the table.
        paths: its files.
        table: the table; its selections are the compared grids.
        missing: absent files are added to it and left out. If it is None, they are an error.

    Returns:
        Frames by the suffix of their file: ``csv`` has the rules, ``comparisons.csv`` the comparisons.

    Raises:
        MissingResultsError: a cell has not been trained, and ``missing`` is None.
        UnreadableResultsError: a file lacks a column, or no trial is marked best.
    """
    cells = [cell for selection in table.selections() for cell in study.cells(selection)]
    sizes = {name: dataset.test_size for name, dataset in study.datasets.items()}
    comparisons = compare(grids(load_trials(study, paths, cells, missing), sizes))
    return {
        "csv": evidence_table(comparisons, related_datasets(study.datasets)),
        "comparisons.csv": comparison_table(comparisons),
    }


def show(_: TuningImplications, numbers: pd.DataFrame) -> TextTable:
    """Lay out the rules; an effect is positive if it agrees with the rule."""
    rows = [
        {
            "Condition": str(row["condition"]),
            "Rule": str(row["implication"]),
            "Measured": f"{row['effect_measured']} ({row['unit']})",
            "Effect [this study]": (
                f"{signed(row['effect'])} {interval(row['lower_here'], row['upper_here'])}"
            ),
            "Other datasets": interval(row["lower_elsewhere"], row["upper_elsewhere"]),
            "Margin": f"{row['margin']:g}",
            "Visible": with_range(row["smallest_visible_here"], decimals=2),
            "Comparisons": str(row["comparisons"]),
            "Units (for, against)": f"{row['units']} ({row['in_favour']}, {row['against']}) in "
            f"{row['groups_of_datasets']}",
            "Verdict": str(row["verdict"]),
        }
        for row in numbers.to_dict("records")
    ]
    return TextTable.of(
        rows,
        ["p0.08", "p0.11", "p0.15", "p0.14", "p0.13", "p0.06", "p0.06", "p0.06", "p0.09", "p0.08"],
        groups=group_starts([row["Condition"] for row in rows]),
        size="footnotesize",
        note=NOTE,
    )
