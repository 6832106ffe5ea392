"""Accuracy against the clipping bound; batch size and learning rate are tuned with it."""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from dpsweep.analysis.frames import load_trials, stack
from dpsweep.analysis.statistics import best_centre, best_position
from dpsweep.choice import choose
from dpsweep.figures import style
from dpsweep.study import Study
from dpsweep.study.paths import Paths
from dpsweep.study.targets import ClippingCurve

COLUMNS = [
    "panel", "title", "line", "label", "problem", "epsilon", "epochs", "clipping_bound", "batch_size",
    "full_batch", "learning_rate", "centre", "cross_fitted", "minimum", "maximum", "repeats",
    "diverged", "best",
]  # fmt: skip


def accuracy_by_clipping_bound(
    study: Study, paths: Paths, figure: ClippingCurve, missing: list[Path] | None = None
) -> pd.DataFrame:
    """One row per point: its centre and band, as accuracy or as difference to the line's best.

    The number without optimism (``cross_fitted``) is then a difference to that of the line's own
    choice of C.
    """
    lines = []
    for panel_index, panel in enumerate(figure.panels):
        for line_index, line in enumerate(panel.lines):
            trials = load_trials(paths, study.cells(line), missing)
            points = choose(trials, by=["clipping_bound"], centre=figure.centre)
            points["best"] = points.index == best_position(points["selection_accuracy"])
            if figure.quantity == "difference":
                band = ["centre", "minimum", "maximum"]
                points[band] -= best_centre(points["centre"])
                points["cross_fitted"] -= best_centre(
                    choose(trials, by=["problem"])["cross_fitted"]
                )
            lines.append(
                points.assign(
                    panel=panel_index, title=panel.title, line=line_index, label=line.label
                )
            )
    return stack(lines, COLUMNS)


def plot(figure: ClippingCurve, numbers: pd.DataFrame) -> Figure:
    """Draw a line and a band for each line, its best point ringed."""
    count = len(figure.panels)
    drawing = style.panels_figure(count, height=2.0)
    difference = figure.quantity == "difference"
    all_axes = drawing.subplots(1, count, squeeze=False, sharey=difference)[0]
    for index, (axes, panel) in enumerate(zip(all_axes, figure.panels, strict=True)):
        here = numbers[numbers["panel"] == index]
        colours = style.line_colours([line.difficulty for line in panel.lines])
        for line_index, (line, colour) in enumerate(zip(panel.lines, colours, strict=True)):
            points = here[here["line"] == line_index]
            x = points["clipping_bound"]
            axes.fill_between(
                x, points["minimum"], points["maximum"], color=colour, alpha=0.2, linewidth=0
            )
            marker = style.MARKERS[line_index % len(style.MARKERS)]
            axes.plot(x, points["centre"], marker=marker, color=colour, label=line.label)
            best = points[points["best"]]
            axes.plot(
                best["clipping_bound"], best["centre"], linestyle="none", marker="o",
                markersize=8, markerfacecolor="none", markeredgecolor=colour, markeredgewidth=1.1,
            )  # fmt: skip
        if len(here):
            style.value_axis(axes, "x", list(here["clipping_bound"]), base=10)
        axes.set_title(panel.title)
        axes.set_xlabel(style.CLIPPING_LABEL)
        axes.margins(y=0.12)
        style.legend(axes, len(panel.lines))
    all_axes[0].set_ylabel("Accuracy − best" if difference else "Macro accuracy")
    return drawing
