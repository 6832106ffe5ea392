"""Figure and table of the privacy audit: claimed epsilon against measured lower bounds, for each setting."""

from __future__ import annotations

from typing import Any

from dpsweep.analysis.frames import MissingResultsError, write_numbers
from dpsweep.base.errors import DpsweepError
from dpsweep.base.files import read_json
from dpsweep.base.lazy import matplotlib, pd, sns
from dpsweep.figures import style
from dpsweep.study import Cell, Paths, Study, StudyError
from dpsweep.study.cells import number
from dpsweep.study.fingerprints import report_fingerprint, write_settings
from dpsweep.tables.text import TextTable, group_starts, write_printed

_TITLES = {
    "curve_bound": "by guesses",
    "noise_bound": "by the noise itself",
}


def write_audit(study: Study, paths: Paths) -> None:
    """Write the audit as ``csv`` and, from these numbers alone, as ``pdf``, ``png``, ``tex`` and ``md``.

    Raises:
        StudyError: the study has no audit.
        MissingResultsError: a setting has not been audited.
    """
    numbers = load_audit(study, paths)
    with style.style(study.style):
        style.save(plot(numbers), paths.audit("pdf"), paths.audit("png"))
    write_numbers(numbers, paths.audit("csv"))
    write_printed(paths.audit, show(numbers), caption(numbers), "audit")
    write_settings(paths.audit("csv"), report_fingerprint(study))


def plot(numbers: pd.DataFrame) -> matplotlib.figure.Figure:
    """Draw a panel for each bound, with a line for each batch size and the claim as the diagonal."""
    drawing = style.panels_figure(len(BOUNDS), height=2.4)
    panels = drawing.subplots(1, len(BOUNDS), sharex=True, sharey=True)
    limit = 1.06 * max(numbers["epsilon"].max(), numbers[BOUNDS].max(axis=None))
    for axes, (bound, title) in zip(panels, _TITLES.items(), strict=True):
        _plot_bound(axes, numbers, bound, limit)
        axes.set_title(title)
    panels[0].set_ylabel("Measured ε, at least")
    handles, labels = panels[0].get_legend_handles_labels()
    for axes in panels:
        axes.get_legend().remove()
    drawing.legend(handles, labels, loc="outside upper center", ncols=len(handles))
    return drawing


def _plot_bound(
    axes: matplotlib.axes.Axes, numbers: pd.DataFrame, bound: str, limit: float
) -> None:
    axes.plot([0, limit], [0, limit], color="black", linewidth=0.8, linestyle="--")
    axes.fill_between([0, limit], [0, limit], limit, color=style.BEST, alpha=0.08, linewidth=0)
    look: dict[str, Any] = {"color": style.BEST, "va": "top", "fontsize": style.look().points(7)}
    axes.text(0.04 * limit, 0.93 * limit, "claim refuted", **look)
    labelled = numbers.assign(label=[_label(row) for _, row in numbers.iterrows()])
    labels = list(labelled["label"].unique())
    sns.lineplot(
        labelled,
        x="epsilon", y=bound, hue="label", hue_order=labels, style="label", style_order=labels,
        palette=style.ordered_colours(len(labels)), markers=style.MARKERS[: len(labels)], dashes=False,
        estimator=None, errorbar=None, markeredgewidth=0, ax=axes,
    )  # fmt: skip
    axes.set_xticks(sorted(set(numbers["epsilon"])))
    axes.xaxis.set_major_formatter(lambda value, _: style.write_value(value))
    axes.set(xlim=(0, limit), ylim=(0, limit))
    axes.set(xlabel="Claimed ε", ylabel="")


def _label(row: pd.Series[Any]) -> str:
    if row["full_batch"]:
        return "Full batch"
    return f"B = {row['batch_size']} (q = {row['sampling_rate']:.2g})"


def caption(numbers: pd.DataFrame) -> str:
    """Describe the audit and its verdict."""
    first = numbers.iloc[0]
    return (
        f"Privacy audit in one training run per row: {first['canaries']} canaries among "
        f"{first['examples']} real examples, δ = {first['delta']:g}. The bound by guesses holds with 95% "
        "confidence, the bound by the noise itself, which takes it for normal and independent, with 99.9%. "
        '"Half the noise": the share of runs in which each bound, in this order, would have found that half '
        "of the noise is missing, by simulation before the run. "
        f"{verdict(numbers)}"
    )


def show(numbers: pd.DataFrame) -> TextTable:
    """Tabulate the settings, one a row, with a horizontal rule between batch sizes."""
    rows = [
        {
            "B": "full" if row["full_batch"] else str(row["batch_size"]),
            "q": f"{row['sampling_rate']:.3g}",
            "T": str(row["steps"]),
            "σ": f"{row['noise_multiplier']:.3f}",
            "Claimed ε": number(row["epsilon"]),
            "Measured ε, at least": f"{row['curve_bound']:.2f}",
            "by the noise": f"{row['noise_bound']:.2f}",
            "Right guesses": f"{row['correct']} of {row['guesses']}",
            "Half the noise": ", ".join(
                style.write_percentage(row[f"{bound}_finds_0.5"]) for bound in ("curve", "noise")
            ),
            "Claim": "stands" if row["consistent"] else "REFUTED",
        }
        for row in numbers.to_dict("records")
    ]
    return TextTable.of(rows, "rrrrrrrrrl", groups=group_starts(list(numbers["batch_size"])))


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
        f"B = {row['batch_size']}: claimed ε = {number(row['epsilon'])}, measured at least {bound:.2f}"
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
