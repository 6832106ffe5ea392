"""The audit of every setting: claimed epsilon against the measured lower bound, drawn and in numbers."""

from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from dpsweep.analysis.audit import load_audit, verdict
from dpsweep.figures import style
from dpsweep.figures.tables.text import TextTable, group_starts
from dpsweep.figures.tables.write import write_numbers, write_printed
from dpsweep.study import Study
from dpsweep.study.paths import Paths


def write_audit(study: Study, paths: Paths) -> None:
    """Write the audit's ``csv`` and, made from nothing but its numbers, ``pdf``, ``png``, ``tex``, ``md``.

    Raises:
        StudyError: the study has no audit.
        MissingResultsError: a setting has not been audited.
    """
    numbers = load_audit(study, paths)
    with style.style():
        style.save(plot(numbers), paths.audit("pdf"), paths.audit("png"))
    write_numbers(numbers, paths.audit("csv"))
    write_printed(paths.audit, show(numbers), caption(numbers), "audit")


def plot(numbers: pd.DataFrame) -> Figure:
    """Draw a line for each batch size under the diagonal, which is the claim itself."""
    drawing = style.panels_figure(1, height=2.4)
    axes = drawing.subplots()
    limit = 1.06 * max(numbers["epsilon"].max(), numbers["lower_bound"].max())
    axes.plot([0, limit], [0, limit], color="black", linewidth=0.8, linestyle="--")
    axes.fill_between([0, limit], [0, limit], limit, color=style.BEST, alpha=0.08, linewidth=0)
    axes.text(0.04 * limit, 0.93 * limit, "claim refuted", color=style.BEST, va="top", fontsize=7)
    labelled = numbers.assign(label=[_label(row) for _, row in numbers.iterrows()])
    labels = list(labelled["label"].unique())
    sns.lineplot(
        labelled,
        x="epsilon", y="lower_bound", hue="label", hue_order=labels, style="label", style_order=labels,
        palette=style.ordered_colours(len(labels)), markers=style.MARKERS[: len(labels)], dashes=False,
        estimator=None, errorbar=None, markeredgewidth=0, ax=axes,
    )  # fmt: skip
    axes.set_xticks(sorted(set(numbers["epsilon"])))
    axes.xaxis.set_major_formatter(lambda value, _: style.write_value(value))
    axes.set(xlim=(0, limit), ylim=(0, limit))
    axes.set(xlabel="Claimed ε", ylabel="Measured ε, at least")
    handles, _ = axes.get_legend_handles_labels()
    style.legend_above(axes, "", handles)
    return drawing


def _label(row: "pd.Series[Any]") -> str:
    if row["full_batch"]:
        return "Full batch"
    return f"B = {row['batch_size']} (q = {row['sampling_rate']:.2g})"


def caption(numbers: pd.DataFrame) -> str:
    """Describe the audit, and give its verdict."""
    first = numbers.iloc[0]
    return (
        f"Privacy audit in one training run per row: {first['canaries']} canaries among "
        f"{first['examples']} real examples, δ = {first['delta']:g}. Each bound holds with "
        f"{first['confidence']:.0%} confidence. {verdict(numbers)}"
    )


def show(numbers: pd.DataFrame) -> TextTable:
    """One row per setting, a rule between batch sizes."""
    rows = [
        {
            "B": "full" if row["full_batch"] else str(row["batch_size"]),
            "q": f"{row['sampling_rate']:.3g}",
            "T": str(row["steps"]),
            "σ": f"{row['noise_multiplier']:.3f}",
            "Claimed ε": f"{row['epsilon']:g}",
            "Measured ε, at least": f"{row['lower_bound']:.2f}",
            "Right guesses": f"{row['correct']} of {row['guesses']}",
            "Claim": "stands" if row["consistent"] else "REFUTED",
        }
        for row in numbers.to_dict("records")
    ]
    return TextTable.of(rows, "rrrrrrrl", groups=group_starts(list(numbers["batch_size"])))
