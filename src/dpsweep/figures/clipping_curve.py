"""Accuracy against the clipping bound; batch size and learning rate are tuned with it."""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from dpsweep.analysis.frames import load_trials
from dpsweep.analysis.statistics import best_centre, best_position
from dpsweep.figures import lines, style
from dpsweep.study import Study
from dpsweep.study.choice import choose
from dpsweep.study.paths import Paths
from dpsweep.study.targets import ClippingCurve

COLUMNS = [
    "panel", "title", "line", "label", "problem", "epsilon", "epochs", "clipping_bound", "batch_size",
    "full_batch", "learning_rate", "centre", "cross_fitted", "minimum", "maximum", "repeats",
    "diverged", "best", "difficulty",
]  # fmt: skip
# What is further below the best is written as a number: the axis is for telling good from nearly good.
_FLOOR = -0.1


def accuracy_by_clipping_bound(
    study: Study, paths: Paths, figure: ClippingCurve, missing: list[Path] | None = None
) -> pd.DataFrame:
    """One row per point: its centre, band and repeats, as accuracy or as difference to the best.

    The number without optimism (``cross_fitted``) is then a difference to that of the line's own
    choice of C.

    Arguments are those of `dpsweep.figures.draw.Compute`.
    """
    frames = []
    for panel_index, panel in enumerate(figure.panels):
        for line_index, line in enumerate(panel.lines):
            trials = load_trials(paths, study.cells(line), missing)
            points = choose(trials, by=["clipping_bound"], centre=figure.centre)
            points = lines.with_repeats(points, trials)
            points["best"] = points.index == best_position(points["selection_accuracy"])
            if figure.quantity == "difference":
                band = ["centre", "minimum", "maximum", *lines.seed_columns(points)]
                points[band] -= best_centre(points["centre"])
                points["cross_fitted"] -= best_centre(
                    choose(trials, by=["problem"])["cross_fitted"]
                )
            frames.append(
                points.assign(
                    panel=panel_index, title=panel.title, line=line_index, label=line.label,
                    difficulty=line.difficulty,
                )
            )  # fmt: skip
    return lines.stack(frames, COLUMNS)


def plot(figure: ClippingCurve, numbers: pd.DataFrame) -> Figure:
    """Draw a line for each problem, its best point ringed, and the chosen B and learning rates."""
    panels = [panel for _, panel in numbers.groupby("panel", sort=False)]
    difference = figure.quantity == "difference"
    colours = [_colours(panel) for panel in panels]
    drawing, all_axes = lines.plot(
        numbers, "clipping_bound", colours, chosen=["batch_size", "learning_rate"], height=1.9,
        share_y=difference,
    )  # fmt: skip
    lowest = float(numbers["centre"].min())
    floor = 1.2 * _FLOOR if difference and lowest < 2 * _FLOOR else lowest
    for axes, panel, its_colours in zip(all_axes, panels, colours, strict=True):
        palette = dict(zip(dict.fromkeys(panel["label"]), its_colours, strict=True))
        best = panel[panel["best"]]
        axes.scatter(
            best["clipping_bound"], best["centre"], s=60, facecolors="none",
            edgecolors=[palette[label] for label in best["label"]], linewidths=1.1, zorder=3,
        )  # fmt: skip
        ends = {panel["clipping_bound"].min(): "left", panel["clipping_bound"].max(): "right"}
        for bound, points in panel[panel["centre"] < floor].groupby("clipping_bound"):
            for height, (_, point) in enumerate(points.iterrows()):
                axes.annotate(
                    f"↓ {point['centre']:.2f}".replace("-", "−"), (bound, floor),
                    (0, 2 + 8 * height), textcoords="offset points", va="bottom",
                    ha=ends.get(bound, "center"), fontsize=style.SMALL,
                    color=palette[point["label"]],
                )  # fmt: skip
        room = style.room_for_labels(len(panels))
        style.value_axis(axes, "x", list(panel["clipping_bound"]), labels=room)
    for axes in drawing.axes[-len(panels) :]:
        axes.set_xlabel(style.log_label(style.CLIPPING_LABEL, len(panels)))
    all_axes[0].margins(y=0.12)
    if floor > lowest:
        highest = float(np.nanmax(numbers[["centre", "maximum"]].to_numpy(dtype=float)))
        all_axes[0].set_ylim(floor, highest - 0.1 * floor)
    all_axes[0].set_ylabel("Accuracy − best" if difference else "Macro accuracy")
    return drawing


def _colours(panel: pd.DataFrame) -> list[str]:
    of_lines = panel.drop_duplicates("line")["difficulty"]
    return style.line_colours([None if pd.isna(each) else str(each) for each in of_lines])
