"""Figure and table of the privacy audit: claimed epsilon against measured lower bounds, for each setting."""

from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpsweep.analysis.audit import BOUNDS, load_audit, verdict
from dpsweep.figures import style
from dpsweep.study import Study
from dpsweep.study.paths import Paths
from dpsweep.tables.text import TextTable, group_starts
from dpsweep.tables.write import write_numbers, write_printed

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


def plot(numbers: pd.DataFrame) -> Figure:
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


def _plot_bound(axes: Axes, numbers: pd.DataFrame, bound: str, limit: float) -> None:
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


def _label(row: "pd.Series[Any]") -> str:
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
            "Claimed ε": f"{row['epsilon']:g}",
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
