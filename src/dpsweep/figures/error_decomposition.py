"""MSE(C) of Theorem 4.1: what clipping takes away and what noise adds, over the clipping bound."""

from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dpsweep.analysis.frames import stack
from dpsweep.analysis.overlaps import NOTE, PRIVACY, Overlap, load_overlaps
from dpsweep.figures import style
from dpsweep.study import Study
from dpsweep.study.paths import Paths
from dpsweep.study.targets import ErrorDecomposition
from dpsweep.theory import mean_squared_error, mse_optimal_clipping

COLUMNS = [
    "panel", "title", "problem", "epsilon", "epochs", "batch_size", "learning_rate",
    "trained_with_bound", "epoch", "clipping_bound", "bias", "noise", "error", "smallest", "largest",
    "draws", "best_bound", "noise_multiplier", "privacy", "full_batch",
]  # fmt: skip
_POINTS = 61
_PARTS: dict[str, Literal["-", ":", "--"]] = {"error": "-", "bias": ":", "noise": "--"}


def errors_by_bound(
    study: Study, paths: Paths, figure: ErrorDecomposition, missing: list[Path] | None = None
) -> pd.DataFrame:
    """One row per (panel, epoch, C): parts of the error over |g|^2, mean over draws.

    An error of 1 is that of adding nothing. ``smallest`` and ``largest`` are of the whole error, over
    draws. Epochs are the start (0), the middle and the end.

    Arguments are those of `dpsweep.figures.draw.Compute`.
    """
    frames = []
    for index, panel in enumerate(figure.panels):
        overlaps = [
            each
            for each in load_overlaps(paths, study.cells(panel), missing)
            if each.epoch in (0, each.cell.epochs // 2, each.cell.epochs)
            and each.sums.total_square > 0
        ]
        if not overlaps:
            continue
        norms = np.concatenate([each.sums.norms for each in overlaps])
        bounds = np.geomspace(np.quantile(norms, 0.01) / 100, 2 * norms.max(), _POINTS)
        every = pd.concat([_errors(each, bounds) for each in overlaps])
        by = every.groupby(["epoch", "clipping_bound"])
        means = by[["bias", "noise", "error", "best_bound"]].mean()
        first = overlaps[0]
        frames.append(
            means.assign(smallest=by["error"].min(), largest=by["error"].max(), draws=by.size())
            .reset_index()
            .assign(
                panel=index,
                title=panel.title,
                problem=first.cell.problem,
                epsilon=first.cell.epsilon,
                epochs=first.cell.epochs,
                batch_size=first.batch_size,
                full_batch=first.batch_size == study.train_size(panel.problem.dataset),
                learning_rate=first.learning_rate,
                trained_with_bound=first.cell.clipping_bound,
                noise_multiplier=first.noise_multiplier,
                privacy=PRIVACY,
            )
        )
    return stack(frames, COLUMNS)


def _errors(overlap: Overlap, bounds: np.ndarray) -> pd.DataFrame:
    noise_multiplier, square = overlap.scaled(overlap.noise_multiplier), overlap.sums.total_square
    error = mean_squared_error(overlap.sums, bounds, noise_multiplier, overlap.dimension)
    return pd.DataFrame(
        {
            "epoch": overlap.epoch,
            "clipping_bound": bounds,
            "bias": error.bias / square,
            "noise": error.noise / square,
            "error": error.total / square,
            "best_bound": mse_optimal_clipping(overlap.sums, noise_multiplier, overlap.dimension),
        }
    )


def plot(_: ErrorDecomposition, numbers: pd.DataFrame) -> Figure:
    """Draw a panel for each cell: the error as a line with its parts, a colour for each epoch."""
    panels = [panel for _, panel in numbers.groupby("panel")]
    drawing = style.panels_figure(len(panels), height=2.4)
    all_axes = drawing.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    epochs = sorted(numbers["epoch"].unique())
    colours = dict(zip(epochs, style.ordered_colours(len(epochs)), strict=True))
    for axes, panel in zip(all_axes, panels, strict=True):
        # The error last: where it is nearly all bias or all noise, it is one line.
        for part, line in reversed(_PARTS.items()):
            sns.lineplot(
                panel, x="clipping_bound", y=part, hue="epoch", palette=colours, linestyle=line,
                linewidth=1.1, estimator=None, errorbar=None, legend=False, ax=axes,
            )  # fmt: skip
        for epoch, rows in panel.groupby("epoch"):
            axes.fill_between(
                rows["clipping_bound"], rows["smallest"], rows["largest"], color=colours[epoch],
                alpha=0.2, linewidth=0,
            )  # fmt: skip
            axes.axvline(rows["best_bound"].iloc[0], color=colours[epoch], linewidth=0.7)
        axes.set_yscale("log")
        axes.set_ylim(1e-3, 1e2)
        style.log_axis(axes, "x")
        axes.set(xlabel=style.log_label(style.CLIPPING_LABEL, len(panels)), ylabel="")
        style.title(axes, str(panel["title"].iloc[0]), style.write_chosen(panel.iloc[0]))
    all_axes[0].set_ylabel("MSE(C) / |g|² (log scale)")
    handles = [
        *(
            Line2D([], [], color="black", linestyle=line, label=part)
            for part, line in _PARTS.items()
        ),
        *(
            Line2D([], [], color=colours[each], linewidth=3, label=f"epoch {each}")
            for each in epochs
        ),
    ]
    drawing.legend(handles=handles, loc="outside upper center", ncols=6)
    style.note(
        drawing, f"1 is the error of adding nothing. A vertical line: C* of that epoch. {NOTE}"
    )
    return drawing
