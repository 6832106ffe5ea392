"""The audit of a study: what was found in every setting, and what follows."""

import pandas as pd

from dpsweep.analysis.frames import MissingResultsError
from dpsweep.base.errors import DpsweepError
from dpsweep.base.files import read_json
from dpsweep.study import Cell, Study, StudyError
from dpsweep.study.paths import Paths

COLUMNS = [
    "epsilon", "lower_bound", "consistent", "confidence", "p_value", "canaries", "guesses", "correct",
    "examples", "batch_size", "full_batch", "sampling_rate", "epochs", "steps", "clipping_bound",
    "delta", "noise_multiplier", "macro_accuracy",
]  # fmt: skip


class AuditFailedError(DpsweepError):
    """Training gives away more than is claimed."""


def load_audit(study: Study, paths: Paths) -> pd.DataFrame:
    """Read what the audit found: one row per setting, batch size by batch size.

    Columns: ``epsilon`` (claimed), ``lower_bound`` (measured, holds with probability
    ``confidence``), ``consistent`` (it does not exceed the claim), ``p_value`` (of the guesses
    under the claim), ``canaries, guesses, correct``, ``examples`` (real ones), ``batch_size,
    full_batch, sampling_rate, epochs, steps, clipping_bound, delta, noise_multiplier``, and
    ``macro_accuracy`` of the audited trial.

    Raises:
        StudyError: the study has no audit.
        MissingResultsError: a setting has not been audited.
    """
    if study.audit is None:
        raise StudyError("this study has no section audit; studies/demo.yaml shows one")
    cells = study.audit_cells()
    missing = [path for path in map(paths.audited, cells) if not path.exists()]
    if missing:
        raise MissingResultsError(
            f"{len(missing)} of {len(cells)} settings are not audited, the first is {missing[0]}",
            ("audit",),
        )
    return pd.DataFrame([_row(cell, paths) for cell in cells])[COLUMNS]


def _row(cell: Cell, paths: Paths) -> dict[str, object]:
    found = read_json(paths.audited(cell))
    return {
        **found["calibration"],
        **found,
        "epsilon": found["claimed_epsilon"],
        "epochs": cell.epochs,
        "clipping_bound": cell.clipping_bound,
        "macro_accuracy": found["trial"]["macro_accuracy"],
    }


def verdict(audit: pd.DataFrame) -> str:
    """Say in one sentence whether the claimed epsilons stand."""
    refuted = audit[~audit["consistent"]]
    if refuted.empty:
        return (
            f"The audit refutes none of {len(audit)} claims: the measured lower bounds stay below "
            f"the claimed ε, at most {(audit['lower_bound'] / audit['epsilon']).max():.2f} of it."
        )
    listed = "; ".join(
        f"B = {row.batch_size}: claimed ε = {row.epsilon:g}, measured at least {row.lower_bound:.2f}"
        for row in refuted.itertuples()
    )
    return f"The audit refutes {len(refuted)} of {len(audit)} claims ({listed})."


def check_audit(audit: pd.DataFrame) -> None:
    """Pass where every claim stands.

    Raises:
        AuditFailedError: a lower bound exceeds the claimed epsilon.
    """
    if not audit["consistent"].all():
        raise AuditFailedError(
            f"{verdict(audit)} Training gives away more than it claims: look for a mistake in "
            "sampling, clipping, noise or accounting before using any private result"
        )
