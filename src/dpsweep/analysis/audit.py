"""The results of a study's privacy audit, and the verdict on its claimed epsilons."""

import pandas as pd

from dpsweep.analysis.frames import MissingResultsError
from dpsweep.base.errors import DpsweepError
from dpsweep.base.files import read_json
from dpsweep.study import Cell, Study, StudyError
from dpsweep.study.paths import Paths

BOUNDS = ["curve_bound", "noise_bound"]
"""Columns of measured epsilons: from guesses that test the trade-off curve, and from the noise itself."""
COLUMNS = [
    "epsilon", *BOUNDS, "consistent", "p_value", "canaries", "guesses", "correct", "noise_at_most",
    *(f"{bound}_finds_{share}" for bound in ("curve", "noise") for share in ("0.5", "0.7")),
    "examples", "batch_size", "full_batch", "sampling_rate", "epochs", "steps", "clipping_bound",
    "delta", "noise_multiplier", "macro_accuracy",
]  # fmt: skip


class AuditFailedError(DpsweepError):
    """An audit whose measured epsilon is above the claimed one."""


def load_audit(study: Study, paths: Paths) -> pd.DataFrame:
    """Read the audit's results: one row per setting, batch size by batch size.

    Columns: ``epsilon`` (claimed), ``curve_bound`` (measured from guesses that test the trade-off curve,
    with 95 % confidence) and ``noise_bound`` (from the noise itself, with 99.9 % confidence; see
    `dpsweep.privacy.audit`), ``consistent`` (none refutes the claim), ``p_value`` (of the guesses under
    the claim), ``canaries, guesses, correct``, ``noise_at_most`` (noise multiplier, from the noise itself),
    ``<bound>_finds_<share>`` (the power: the share of runs in which the bound would refute a trainer
    that adds that share of the noise), ``examples`` (real ones), ``batch_size, full_batch,
    sampling_rate, epochs, steps, clipping_bound, delta, noise_multiplier``, and ``macro_accuracy`` of
    the audited trial.

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
        "noise_bound": found["measured_noise"]["lower_bound"],
        "noise_at_most": found["measured_noise"]["noise_at_most"],
        **{name: found["curve"][name] for name in ("p_value", "guesses", "correct")},
        "curve_bound": found["curve"]["lower_bound"],
        **{
            f"{bound}_finds_{share}": power
            for share, powers in found["power"].items()
            for bound, power in powers.items()
        },
        "epochs": cell.epochs,
        "clipping_bound": cell.clipping_bound,
        "macro_accuracy": found["trial"]["macro_accuracy"],
    }


def verdict(audit: pd.DataFrame) -> str:
    """Return one sentence: does the audit refute a claimed epsilon?"""
    refuted = audit[~audit["consistent"]]
    largest = float(audit[BOUNDS].div(audit["epsilon"], axis=0).to_numpy().max())
    if refuted.empty:
        return (
            f"The audit refutes none of {len(audit)} claims: the measured lower bounds stay below "
            f"the claimed ε, at most {largest:.2f} of it."
        )
    rows, bounds = refuted.to_dict("records"), refuted[BOUNDS].max(axis=1)
    listed = "; ".join(
        f"B = {row['batch_size']}: claimed ε = {row['epsilon']:g}, measured at least {bound:.2f}"
        for row, bound in zip(rows, bounds, strict=True)
    )
    return f"The audit refutes {len(refuted)} of {len(audit)} claims ({listed})."


def check_audit(audit: pd.DataFrame) -> None:
    """Raise an error if the audit refutes a claimed epsilon.

    Raises:
        AuditFailedError: a lower bound exceeds the claimed epsilon.
    """
    if not audit["consistent"].all():
        raise AuditFailedError(
            f"{verdict(audit)} Training gives away more than it claims: look for a mistake in "
            "sampling, clipping, noise or accounting before using any private result"
        )
