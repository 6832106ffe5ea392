"""Methods against each other over the privacy budget, everything else tuned."""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from dpsweep.analysis.frames import load_trials, stack
from dpsweep.choice import choose
from dpsweep.figures import style
from dpsweep.study import Study
from dpsweep.study.paths import Paths
from dpsweep.study.targets import MethodComparison

COLUMNS = [
    "panel", "title", "line", "label", "problem", "epsilon", "epochs", "batch_size", "full_batch",
    "clipping", "clipping_bound", "learning_rate", "centre", "minimum", "maximum",
    "macro_accuracy", "cross_fitted", "cross_fitted_difference", "repeats", "diverged",
]  # fmt: skip


def accuracy_by_method(
    study: Study, paths: Paths, figure: MethodComparison, missing: list[Path] | None = None
) -> pd.DataFrame:
    """One row per point: mean accuracy and its band minus the best line's mean at that epsilon.

    A method with more to tune gains more from being measured by the seeds that chose. Which is better
    is therefore a matter of ``cross_fitted`` and its difference to the best line's.
    """
    lines = []
    for panel_index, panel in enumerate(figure.panels):
        for line_index, line in enumerate(panel.lines):
            trials = load_trials(paths, study.cells(line), missing)
            points = choose(trials, by=["epsilon"])
            lines.append(
                points.assign(
                    panel=panel_index,
                    title=panel.title,
                    line=line_index,
                    label=line.label,
                    macro_accuracy=points["centre"],
                    cross_fitted_difference=points["cross_fitted"],
                )
            )
    points = stack(lines, COLUMNS)
    best = points.groupby(["panel", "epsilon"])[["macro_accuracy", "cross_fitted"]].transform("max")
    for column in ("centre", "minimum", "maximum"):
        points[column] -= best["macro_accuracy"]
    points["cross_fitted_difference"] -= best["cross_fitted"]
    return points


def plot(figure: MethodComparison, numbers: pd.DataFrame) -> Figure:
    """Draw a line and a band for each method, a panel for each problem."""
    count = len(figure.panels)
    drawing = style.panels_figure(count, height=2.0)
    all_axes = drawing.subplots(1, count, squeeze=False)[0]
    for index, (axes, panel) in enumerate(zip(all_axes, figure.panels, strict=True)):
        here = numbers[numbers["panel"] == index]
        colours = style.category_colours(len(panel.lines))
        for line_index, (line, colour) in enumerate(zip(panel.lines, colours, strict=True)):
            points = here[here["line"] == line_index]
            x = points["epsilon"]
            axes.fill_between(
                x, points["minimum"], points["maximum"], color=colour, alpha=0.2, linewidth=0
            )
            axes.plot(
                x, points["centre"], color=colour, label=line.label,
                marker=style.MARKERS[line_index], linestyle=["-", "--", "-.", ":"][line_index],
            )  # fmt: skip
        if len(here):
            style.value_axis(axes, "x", list(here["epsilon"]), base=2)
        axes.set_title(panel.title)
        axes.set_xlabel(style.EPSILON_LABEL)
    all_axes[0].set_ylabel("Accuracy − best")
    labels = [[line.label for line in panel.lines] for panel in figure.panels]
    if all(each == labels[0] for each in labels):
        handles, _ = all_axes[0].get_legend_handles_labels()
        drawing.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    else:
        for axes in all_axes:
            axes.legend(loc="best")
    return drawing
