"""Claimed epsilon against the lower bound that the audit measures."""

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from dpsweep.analysis.audit import load_audit
from dpsweep.base.files import atomic_path
from dpsweep.figures import style
from dpsweep.study import Study
from dpsweep.study.paths import Paths


def draw_audit(study: Study, paths: Paths) -> None:
    """Write the audit's ``csv`` and, drawn from nothing but its numbers, ``pdf`` and ``png``.

    Raises:
        StudyError: the study has no audit.
        MissingResultsError: a setting has not been audited.
    """
    numbers = load_audit(study, paths)
    with style.style():
        style.save(plot(numbers), paths.audit("pdf"), paths.audit("png"))
    with atomic_path(paths.audit("csv")) as file:
        numbers.to_csv(file, index=False, lineterminator="\n")


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
