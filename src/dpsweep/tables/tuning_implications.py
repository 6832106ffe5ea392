"""The paper's tuning rules with the evidence of the sweeps (Table 1)."""

from pathlib import Path

import pandas as pd

from dpsweep.analysis.frames import load_trials
from dpsweep.analysis.rules import comparisons, evidence, grids
from dpsweep.study import Study
from dpsweep.study.paths import Paths
from dpsweep.study.targets import TuningImplications
from dpsweep.tables.text import TextTable, group_starts


def evidence_for_rules(
    study: Study, paths: Paths, table: TuningImplications, missing: list[Path] | None = None
) -> pd.DataFrame:
    """One row per rule; see `dpsweep.analysis.rules.evidence`."""
    cells = [cell for selection in table.cells for cell in study.cells(selection)]
    return evidence(comparisons(grids(load_trials(paths, cells, missing))))


def show(numbers: pd.DataFrame) -> TextTable:
    """Effects are positive where they go as the rule says."""
    rows = numbers.to_dict("records")
    return TextTable(
        header=[
            "Condition", "Rule", "Measured", "Effect [95% interval]", "Comparisons (for, against)",
            "Verdict",
        ],
        rows=[
            [
                str(row["condition"]),
                str(row["implication"]),
                f"{row['effect_measured']} ({row['unit']})",
                "–"
                if row["comparisons"] == 0
                else f"{row['effect']:+.3f} [{row['lower']:+.3f}, {row['upper']:+.3f}]".replace(
                    "-", "−"
                ),
                f"{row['comparisons']} ({row['in_favour']}, {row['against']})",
                str(row["verdict"]),
            ]
            for row in rows
        ],
        columns=["p0.10", "p0.12", "p0.24", "p0.19", "p0.15", "p0.11"],
        groups=group_starts([row["condition"] for row in rows]),
        size="footnotesize",
    )  # fmt: skip
