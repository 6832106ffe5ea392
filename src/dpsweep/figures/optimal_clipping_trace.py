"""C* of Theorem 4.1 beside the norms of the gradients, over the epochs of training."""

from pathlib import Path

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from dpsweep.analysis.frames import stack
from dpsweep.analysis.overlaps import NOTE, PRIVACY, Overlap, load_overlaps
from dpsweep.figures import ranges, style
from dpsweep.study import Study
from dpsweep.study.paths import Paths
from dpsweep.study.targets import OptimalClippingTrace
from dpsweep.theory import direction_optimal_clipping, mse_optimal_clipping

COLUMNS = [
    "panel", "title", "problem", "epsilon", "epochs", "batch_size", "learning_rate",
    "trained_with_bound", "epoch", "best_bound", "smallest", "largest", "median_norm",
    "direction_bound", "plateau_lower", "plateau_upper", "draws", "noise_multiplier", "privacy",
]  # fmt: skip


def optima_by_epoch(
    study: Study, paths: Paths, figure: OptimalClippingTrace, missing: list[Path] | None = None
) -> pd.DataFrame:
    """One row per (panel, epsilon, epoch): C*, median norm and scale-free C, medians over draws.

    ``smallest`` and ``largest`` are of C*, over draws; the plateau is that of the scale-free C.

    Arguments are those of `dpsweep.figures.draw.Compute`.
    """
    frames = []
    for index, panel in enumerate(figure.panels):
        overlaps = load_overlaps(paths, study.cells(panel), missing)
        if not overlaps:
            continue
        every = pd.DataFrame([_optima(each) for each in overlaps])
        by = every.groupby(["problem", "epsilon", "epoch"])
        medians = by.median().assign(
            smallest=by["best_bound"].min(), largest=by["best_bound"].max(), draws=by.size()
        )
        frames.append(medians.reset_index().assign(panel=index, title=panel.title, privacy=PRIVACY))
    return stack(frames, COLUMNS)


def _optima(overlap: Overlap) -> dict[str, float | str]:
    cell, noise_multiplier = overlap.cell, overlap.scaled(overlap.noise_multiplier)
    direction = direction_optimal_clipping(overlap.sums, noise_multiplier, overlap.dimension)
    norms = overlap.sums.norms
    return {
        "problem": cell.problem,
        "epsilon": cell.epsilon,
        "epochs": cell.epochs,
        "batch_size": overlap.batch_size,
        "learning_rate": overlap.learning_rate,
        "trained_with_bound": float(cell.clipping_bound),
        "noise_multiplier": overlap.noise_multiplier,
        "epoch": overlap.epoch,
        "best_bound": mse_optimal_clipping(overlap.sums, noise_multiplier, overlap.dimension),
        "median_norm": float(np.median(norms)) if len(norms) else 0.0,
        "direction_bound": direction.clipping_bound,
        "plateau_lower": direction.lower,
        "plateau_upper": direction.upper,
    }


def plot(_: OptimalClippingTrace, numbers: pd.DataFrame) -> Figure:
    """Draw a panel for each problem: C* solid with its range over draws, the median norm dashed."""
    panels = [panel for _, panel in numbers.groupby("panel")]
    drawing = style.panels_figure(len(panels), height=2.5)
    all_axes = drawing.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    budgets = sorted(numbers["epsilon"].unique())
    colours = dict(zip(budgets, style.ordered_colours(len(budgets)), strict=True))
    edge = ranges.lower_edge(numbers)
    for axes, panel in zip(all_axes, panels, strict=True):
        sns.lineplot(
            panel, x="epoch", y="median_norm", hue="epsilon", palette=colours, linestyle="--",
            linewidth=1, estimator=None, errorbar=None, legend=False, ax=axes,
        )  # fmt: skip
        lines = [(colours[epsilon], points) for epsilon, points in panel.groupby("epsilon")]
        ranges.draw(axes, lines, "epoch", edge)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
        axes.set(title=panel["title"].iloc[0], xlabel="Epoch", ylabel="")
    below = ranges.end_at(all_axes[0], numbers, edge)
    all_axes[0].set_ylabel("C* and median norm (log scale)")
    handles = [
        Line2D([], [], color="black", marker="o", markersize=2.5, label="C*"),
        Line2D([], [], color="black", linestyle="--", linewidth=1, label="median norm"),
        *(Line2D([], [], color=colours[each], linewidth=3, label=f"ε = {style.write_value(each)}")
          for each in budgets),
    ]  # fmt: skip
    drawing.legend(handles=handles, loc="outside upper center", ncols=5 if len(panels) > 1 else 3)
    style.note(drawing, f"Epoch 0 is before the first step. {ranges.EDGE if below else ''}{NOTE}")
    return drawing
