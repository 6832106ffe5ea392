"""The audit of every setting: claimed epsilon against the measured lower bound, drawn and in numbers."""

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from dpsweep.analysis.audit import load_audit, verdict
from dpsweep.base.files import atomic_path, write_text
from dpsweep.figures import style
from dpsweep.figures.tables.text import TextTable, group_starts
from dpsweep.study import Study
from dpsweep.study.paths import Paths

_HEADER = [
    "B", "q", "T", "σ", "Claimed ε", "Measured ε, at least", "Right guesses", "Claim",
]  # fmt: skip


def write_audit(study: Study, paths: Paths) -> None:
    """Write the audit's ``csv`` and, made from nothing but its numbers, ``pdf``, ``png``, ``tex``, ``md``.

    Raises:
        StudyError: the study has no audit.
        MissingResultsError: a setting has not been audited.
    """
    numbers = load_audit(study, paths)
    with style.style():
        style.save(plot(numbers), paths.audit("pdf"), paths.audit("png"))
    with atomic_path(paths.audit("csv")) as file:
        numbers.to_csv(file, index=False, lineterminator="\n")
    said, printed = caption(numbers), show(numbers)
    write_text(paths.audit("tex"), printed.latex(said, "tab:audit"))
    write_text(paths.audit("md"), printed.markdown(said))


def plot(numbers: pd.DataFrame) -> Figure:
    """Draw a line for each batch size under the diagonal, which is the claim itself."""
    drawing = style.panels_figure(1, height=2.4)
    axes = drawing.subplots()
    limit = 1.06 * max(numbers["epsilon"].max(), numbers["lower_bound"].max())
    axes.plot([0, limit], [0, limit], color="black", linewidth=0.8, linestyle="--")
    axes.fill_between([0, limit], [0, limit], limit, color=style.BEST, alpha=0.08, linewidth=0)
    axes.text(0.04 * limit, 0.93 * limit, "claim refuted", color=style.BEST, va="top", fontsize=7)
    sizes = numbers.drop_duplicates("batch_size")
    labels = [
        "Full batch"
        if row["full_batch"]
        else f"B = {row['batch_size']} (q = {row['sampling_rate']:.2g})"
        for _, row in sizes.iterrows()
    ]
    sns.lineplot(
        numbers.assign(label=numbers["batch_size"].map(dict(zip(sizes["batch_size"], labels, strict=True)))),
        x="epsilon", y="lower_bound", hue="label", hue_order=labels, style="label", style_order=labels,
        palette=style.ordered_colours(len(labels)), markers=style.MARKERS[: len(labels)], dashes=False,
        estimator=None, errorbar=None, markeredgewidth=0, ax=axes,
    )  # fmt: skip
    axes.set_xticks(sorted(set(numbers["epsilon"])))
    axes.xaxis.set_major_formatter(lambda value, _: style.write_value(value))
    axes.set_xlim(0, limit)
    axes.set_ylim(0, limit)
    axes.set_xlabel("Claimed ε")
    axes.set_ylabel("Measured ε, at least")
    handles, _ = axes.get_legend_handles_labels()
    style.legend_above(axes, "", handles)
    return drawing


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
