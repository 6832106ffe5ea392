"""The audit of every setting in numbers."""

import pandas as pd

from dpsweep.analysis.audit import load_audit, verdict
from dpsweep.base.files import write_text
from dpsweep.figures.tables.text import TextTable, group_starts
from dpsweep.study import Study
from dpsweep.study.paths import Paths

_HEADER = [
    "B", "q", "T", "σ", "Claimed ε", "Measured ε, at least", "Right guesses", "Claim",
]  # fmt: skip


def write_audit(study: Study, paths: Paths) -> None:
    """Write the audit's table as ``tex`` and ``md``, with the verdict in its caption.

    Raises:
        StudyError: the study has no audit.
        MissingResultsError: a setting has not been audited.
    """
    numbers = load_audit(study, paths)
    said, printed = caption(numbers), show(numbers)
    write_text(paths.audit("tex"), printed.latex(said, "tab:audit"))
    write_text(paths.audit("md"), printed.markdown(said))


def caption(numbers: pd.DataFrame) -> str:
    """How the audit was made, and its verdict."""
    first = numbers.iloc[0]
    return (
        f"Privacy audit in one training run per row: {first['canaries']} canaries among "
        f"{first['examples']} real examples, δ = {first['delta']:g}. Each bound holds with "
        f"{first['confidence']:.0%} confidence. {verdict(numbers)}"
    )


def show(numbers: pd.DataFrame) -> TextTable:
    """One row per setting, a rule between batch sizes."""
    rows = [
        [
            "full" if row["full_batch"] else str(row["batch_size"]),
            f"{row['sampling_rate']:.3g}",
            str(row["steps"]),
            f"{row['noise_multiplier']:.3f}",
            f"{row['epsilon']:g}",
            f"{row['lower_bound']:.2f}",
            f"{row['correct']} of {row['guesses']}",
            "stands" if row["consistent"] else "REFUTED",
        ]
        for row in numbers.to_dict(orient="records")
    ]
    return TextTable(
        header=_HEADER,
        rows=rows,
        columns=["r"] * 7 + ["l"],
        groups=group_starts(list(numbers["batch_size"])),
    )
