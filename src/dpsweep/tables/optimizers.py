"""The table of the gains of optimizers over a baseline optimizer at the same epsilon."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import pandas as pd

from dpsweep.analysis.frames import load_trials
from dpsweep.analysis.optimizers import optimizers_table, paired_gains, settings_table
from dpsweep.study import Study
from dpsweep.study.paths import Paths
from dpsweep.study.table_targets import OptimizerTable
from dpsweep.tables.text import TextTable, group_starts, interval, signed

NOTE = (
    "A gain is the accuracy in percentage points beyond the baseline ({baseline}) with the same dataset, "
    "network, method, ε, epochs and seed, each with the batch size, clipping bound and learning rate that "
    "other seeds choose for it; a mean over settings. In brackets 95 % t intervals: over seeds, so for these "
    "settings; and over problems (dataset, network, method), so for problems like these. Better, worse: "
    "settings whose own interval over seeds lies on one side of 0. Average over last: what the averaged "
    "parameters gain over the last ones of the same trainings, with an interval over seeds."
)


def gains_and_settings(
    study: Study, paths: Paths, table: OptimizerTable, missing: list[Path] | None = None
) -> dict[str, pd.DataFrame]:
    """Return one row per (epsilon, optimizer), and one per (setting, optimizer).

    Args:
        study: the study.
        paths: its files.
        table: the table.
        missing: absent files are added to it and left out. If it is None, they are an error.

    Returns:
        Frames by the suffix of their file; see `dpsweep.analysis.optimizers`.
    """
    frames = []
    for selection in table.selections():
        averaged = study.optimizer(selection.problem.optimizer).average is not None
        # Only optimizers that average need this column; cells of older versions lack it.
        also = ["last_macro_accuracy"] if averaged else []
        frames.append(load_trials(study, paths, study.cells(selection), missing, also))
    trials = pd.concat([each for each in frames if len(each)] or frames[:1], ignore_index=True)
    gains = paired_gains(trials, table.baseline)
    numbers = optimizers_table(gains, table.baseline)
    titles = {name: study.optimizer_title(name, [1.0]) for name in study.every_optimizer}
    numbers = numbers.assign(
        title=[titles[name] for name in numbers.get("optimizer", [])],
        baseline=titles[table.baseline],
    )
    return {"csv": numbers, "comparisons.csv": settings_table(trials, gains)}


def show(_: OptimizerTable, numbers: pd.DataFrame) -> TextTable:
    """Lay out a block of optimizers for each epsilon, and one for all epsilons."""
    rows = [
        {
            "ε": "all" if pd.isna(row["epsilon"]) else f"{row['epsilon']:g}",
            "Optimizer": str(row["title"]),
            "Settings": str(row["settings"]),
            "Gain [these settings]": _gain(row, ""),
            "[problems like these]": interval(row["lower_elsewhere"], row["upper_elsewhere"]),
            "Better, worse": f"{row['better']}, {row['worse']}",
            "Average over last": _gain(row, "last_"),
        }
        for row in numbers.to_dict("records")
    ]
    baseline = "" if numbers.empty else str(numbers["baseline"].iloc[0])
    return TextTable.of(
        rows,
        ["l", "p0.24", "r", "r", "r", "r", "r"],
        groups=group_starts([row["ε"] for row in rows]),
        size="footnotesize",
        note=NOTE.format(baseline=baseline),
    )


def _gain(row: dict[Hashable, Any], prefix: str) -> str:
    gain, lower, upper = (row[f"{prefix}{name}"] for name in ("gain", "lower", "upper"))
    return f"{signed(gain)} {interval(lower, upper)}".rstrip()
