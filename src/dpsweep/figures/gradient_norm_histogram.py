"""Histogram of per-example gradient norms after the last epoch."""

from pathlib import Path

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dpsweep.analysis.frames import load_gradient_norms, stack
from dpsweep.figures import style
from dpsweep.study import Study
from dpsweep.study.paths import Paths
from dpsweep.study.targets import GradientNormHistogram

COLUMNS = [
    "panel", "title", "problem", "epsilon", "epochs", "clipping_bound", "batch_size",
    "learning_rate", "lower", "upper", "share", "share_above_bound", "full_batch",
]  # fmt: skip
_STEP = 0.05  # width of a bin, in decades of the norm


def gradient_norm_shares(
    study: Study, paths: Paths, figure: GradientNormHistogram, missing: list[Path] | None = None
) -> pd.DataFrame:
    """One row per bin: the share of all examples whose norm is in [lower, upper).

    All panels have the same bins, equally wide in the logarithm. Zero and non-finite norms lie in
    no bin, so the shares of a panel add up to 1 only without them.

    Arguments are those of `dpsweep.figures.draw.Compute`.
    """
    panels = [
        load_gradient_norms(study, paths, [panel], epoch="last", missing=missing)
        for panel in figure.panels
    ]
    logs = [_logarithms(norms) for norms in panels]
    known = np.concatenate([[0.0] if not any(map(len, logs)) else [], *logs])
    first, last = np.floor(known.min() / _STEP), np.floor(known.max() / _STEP)
    # Edges are whole multiples of the step, so that they do not depend on the data's extremes.
    edges = np.round(np.arange(first, last + 2) * _STEP, 10)
    frames = []
    for index, (panel, norms, values) in enumerate(zip(figure.panels, panels, logs, strict=True)):
        if norms.empty:
            continue
        constant = ["problem", "epsilon", "epochs", "clipping_bound", "batch_size", "learning_rate"]
        frames.append(
            pd.DataFrame(
                {
                    "lower": 10 ** edges[:-1],
                    "upper": 10 ** edges[1:],
                    "share": np.histogram(values, edges)[0] / len(norms),
                }
            ).assign(
                panel=index,
                title=panel.title,
                share_above_bound=float((norms["norm"] > norms["clipping_bound"]).mean()),
                full_batch=norms["batch_size"].iloc[0] == study.train_size(panel.problem.dataset),
                **{name: norms[name].iloc[0] for name in constant},
            )
        )
    return stack(frames, COLUMNS)


def _logarithms(norms: pd.DataFrame) -> np.ndarray:
    values = norms["norm"].to_numpy(dtype=np.float64)
    logs: np.ndarray = np.log10(values[np.isfinite(values) & (values > 0)])
    return logs


def plot(_: GradientNormHistogram, numbers: pd.DataFrame) -> Figure:
    """Draw a panel for each problem on one horizontal axis, C as a line.

    Vertical axes are their own: where one distribution is a spike, the others would lie flat.
    """
    panels = [panel for _, panel in numbers.groupby("panel")]
    drawing = style.panels_figure(len(panels), height=2.1)
    all_axes = drawing.subplots(1, len(panels), squeeze=False, sharex=True)[0]
    for axes, panel in zip(all_axes, panels, strict=True):
        # On a logarithmic axis seaborn takes the logarithms of the bins' edges.
        axes.set_xscale("log")
        edges = np.log10([*panel["lower"], panel["upper"].iloc[-1]])
        middles = np.sqrt(panel["lower"] * panel["upper"])
        sns.histplot(
            x=middles, weights=panel["share"], bins=list(edges), element="step", linewidth=0,
            color=style.EASY, alpha=0.6, ax=axes,
        )  # fmt: skip
        style.log_axis(axes, "x")
        axes.set_ylim(0, 1.35 * panel["share"].max())  # room for the text above the bars
        bound = panel["clipping_bound"].iloc[0]
        above = style.write_percentage(panel["share_above_bound"].iloc[0])
        axes.axvline(bound, color=style.HARD, linestyle="--", linewidth=1)
        axes.text(
            0.03, 0.97,
            f"C = {style.write_value(bound)}\n{above} above",
            transform=axes.transAxes, va="top", size=7, color=style.HARD,
        )  # fmt: skip
        axes.set(xlabel=style.log_label("Gradient norm", len(panels)), ylabel="")
        axes.yaxis.set_major_locator(MaxNLocator(nbins=4))
        style.title(axes, str(panel["title"].iloc[0]), style.write_chosen(panel.iloc[0]))
    all_axes[0].set_ylabel("Share of examples")
    if len(panels) > 1:
        style.note(drawing, "The vertical axes of the panels differ.")
    return drawing
