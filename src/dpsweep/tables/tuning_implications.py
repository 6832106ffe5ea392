"""The paper's tuning rules with the evidence of the study (Table 1)."""

import itertools
from pathlib import Path

import pandas as pd

from dpsweep.analysis.evidence import (
    FEWEST_COMPARISONS,
    FEWEST_DATASETS,
    compare,
    evidence,
)
from dpsweep.analysis.frames import load_trials
from dpsweep.analysis.grids import grids
from dpsweep.study import Study
from dpsweep.study.config.datasets import shares_examples
from dpsweep.study.paths import Paths
from dpsweep.study.table_targets import TuningImplications
from dpsweep.tables.text import TextTable, group_starts

NOTE = (
    "Effects are positive where things go as the rule says: the mean over datasets of the mean over "
    "comparisons, each of which is a series of grids that differ in the condition alone and share no "
    "trial with another. C and B are chosen by mean accuracy over seeds; gains in accuracy are "
    "cross-fitted (each seed but the first measures what the others chose). In brackets 95 % t "
    "intervals: for this study, with comparisons as units, and for other datasets, with datasets as "
    "units (those that share examples, or are compared with each other, count as one). Verdicts: "
    "p-values below 0.05 after Holm's correction for the number of rules, for other datasets, or else "
    f"for this study only (“here”); from {FEWEST_COMPARISONS} comparisons, for other datasets from "
    f"{FEWEST_DATASETS} datasets."
)
"""What a reader must know to read the table; it follows the caption."""


def evidence_and_comparisons(
    study: Study, paths: Paths, table: TuningImplications, missing: list[Path] | None = None
) -> dict[str, pd.DataFrame]:
    """One row per rule, and beside it one row per comparison; see `dpsweep.analysis.evidence`.

    Args:
        study: the study that has the table.
        paths: where its results lie.
        table: whose selections are the grids that are compared.
        missing: absent files are added to it and left out. Where it is None, they are an error.

    Returns:
        Frames by the suffix of their file: ``csv`` has the rules, ``comparisons.csv`` the comparisons.

    Raises:
        MissingResultsError: a cell has not been trained, and ``missing`` is None.
        UnreadableResultsError: a file does not hold what it should.
    """
    cells = [cell for selection in table.selections() for cell in study.cells(selection)]
    comparisons = compare(grids(load_trials(paths, cells, missing)))
    related = [
        (one, other)
        for one, other in itertools.combinations(study.datasets, 2)
        if shares_examples(study.datasets[one].source, study.datasets[other].source)
    ]
    return {"csv": evidence(comparisons, related), "comparisons.csv": comparisons}


def show(numbers: pd.DataFrame) -> TextTable:
    """Effects are positive where they go as the rule says."""
    rows = numbers.to_dict("records")
    return TextTable(
        header=[
            "Condition", "Rule", "Measured", "Effect [this study]", "Other datasets",
            "Comparisons (for, against)", "Verdict",
        ],
        rows=[
            [
                str(row["condition"]),
                str(row["implication"]),
                f"{row['effect_measured']} ({row['unit']})",
                f"{_signed(row['effect'])} {_interval(row['lower_here'], row['upper_here'])}",
                f"{_interval(row['lower_elsewhere'], row['upper_elsewhere'])}",
                f"{row['comparisons']} ({row['in_favour']}, {row['against']}) in "
                f"{row['groups_of_datasets']}",
                str(row["verdict"]),
            ]
            for row in rows
        ],
        columns=["p0.09", "p0.11", "p0.20", "p0.17", "p0.14", "p0.13", "p0.10"],
        groups=group_starts([row["condition"] for row in rows]),
        size="footnotesize",
    )  # fmt: skip


def _signed(number: float) -> str:
    return "–" if pd.isna(number) else f"{number:+.3f}".replace("-", "−")


def _interval(lower: float, upper: float) -> str:
    return "" if pd.isna(lower) else f"[{_signed(lower)}, {_signed(upper)}]"
