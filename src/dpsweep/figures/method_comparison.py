"""Methods against each other over the privacy budget, everything else tuned."""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from dpsweep.analysis.frames import load_trials
from dpsweep.figures import lines, style
from dpsweep.study import Study
from dpsweep.study.choice import choose
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
    """One row per point: mean, band and repeats, minus the best line's mean at that epsilon.

    A method with more to tune gains more from being measured by the seeds that chose. Which is better
    is therefore a matter of ``cross_fitted`` and its difference to the best line's.

    Arguments are those of `dpsweep.figures.draw.Compute`.
    """
    frames = []
    for panel_index, panel in enumerate(figure.panels):
        for line_index, line in enumerate(panel.lines):
            trials = load_trials(paths, study.cells(line), missing)
            points = lines.with_repeats(choose(trials, by=["epsilon"]), trials)
            frames.append(
                points.assign(
                    panel=panel_index,
                    title=panel.title,
                    line=line_index,
                    label=line.label,
                    macro_accuracy=points["centre"],
                    cross_fitted_difference=points["cross_fitted"],
                )
            )
    points = lines.stack(frames, COLUMNS)
    best = points.groupby(["panel", "epsilon"])[["macro_accuracy", "cross_fitted"]].transform("max")
    for column in ("centre", "minimum", "maximum", *lines.seed_columns(points)):
        points[column] -= best["macro_accuracy"]
    points["cross_fitted_difference"] -= best["cross_fitted"]
    return points


def plot(_: MethodComparison, numbers: pd.DataFrame) -> Figure:
    """Draw a line for each method, a panel for each problem, and what was chosen for each point."""
    panels = [panel for _, panel in numbers.groupby("panel")]
    colours = [style.category_colours(panel["label"].nunique()) for panel in panels]
    drawing, all_axes = lines.plot(
        numbers, "epsilon", colours, chosen=["clipping_bound", "batch_size", "learning_rate"],
        height=1.7, share_y=False,
    )  # fmt: skip
    for axes, panel in zip(all_axes, panels, strict=True):
        room = style.room_for_labels(len(panels))
        style.value_axis(axes, "x", list(panel["epsilon"]), base=2, labels=room)
    for axes in drawing.axes[-len(all_axes) :]:
        axes.set_xlabel(style.log_label(style.EPSILON_LABEL, len(all_axes)))
    all_axes[0].set_ylabel("Accuracy − best")
    return drawing
