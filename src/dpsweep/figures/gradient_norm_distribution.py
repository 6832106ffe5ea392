"""Distribution of per-example gradient norms after every epoch."""

from pathlib import Path

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpsweep.analysis.frames import load_gradient_norms, stack
from dpsweep.analysis.statistics import log_density
from dpsweep.figures import style
from dpsweep.study import Study
from dpsweep.study.paths import Paths
from dpsweep.study.targets import GradientNormDistribution

COLUMNS = [
    "panel", "title", "problem", "epsilon", "epochs", "clipping_bound", "batch_size",
    "learning_rate", "epoch", "quantity", "norm", "value", "full_batch",
]  # fmt: skip
_DECADES = (-16, 10)  # of the density's grid; a well learnt example has a very small gradient
_STEP = 0.02  # of the density's grid, in decades of the norm
_VIOLINS_IN_A_ROW = 50
_QUANTILES = (0.25, 0.5, 0.75)


def gradient_norm_densities(
    study: Study,
    paths: Paths,
    figure: GradientNormDistribution,
    missing: list[Path] | None = None,
) -> pd.DataFrame:
    """The distribution of every panel and epoch, in one long frame.

    Rows with ``quantity`` = density hold ``value``, the density of log10(norm) at ``norm``; rows
    with quantile hold the ``norm`` below which a share ``value`` of the examples lies; rows with
    share above C hold that share. Zero and non-finite norms have no logarithm: they count in the
    share and the quantiles as they are (a NaN does not), not in the density.

    Arguments are those of `dpsweep.figures.draw.Compute`.
    """
    grid = np.round(np.arange(*_DECADES, _STEP), 2)
    frames = []
    for index, panel in enumerate(figure.panels):
        norms = load_gradient_norms(study, paths, [panel], missing=missing)
        keys = ["problem", "epsilon", "epochs", "clipping_bound", "batch_size", "learning_rate"]
        for epoch, group in norms.groupby("epoch"):
            values = group["norm"].to_numpy(dtype=np.float64)
            known = values[~np.isnan(values)]
            density = log_density(values, grid)
            drawn = _support(density)
            bound = float(group["clipping_bound"].iloc[0])
            rows = pd.concat(
                [
                    pd.DataFrame(
                        {"quantity": "density", "norm": 10 ** grid[drawn], "value": density[drawn]}
                    ),
                    pd.DataFrame(
                        {
                            "quantity": "quantile",
                            "norm": np.quantile(known, _QUANTILES) if known.size else np.nan,
                            "value": _QUANTILES,
                        }
                    ),
                    pd.DataFrame(
                        {
                            "quantity": ["share above C"],
                            "norm": [bound],
                            "value": [float(np.mean(known > bound)) if known.size else np.nan],
                        }
                    ),
                ]
            )
            constant = {name: group[name].iloc[0] for name in keys}
            full = study.train_size(panel.problem.dataset)
            constant["full_batch"] = constant["batch_size"] == full
            frames.append(rows.assign(panel=index, title=panel.title, epoch=epoch, **constant))
    return stack(frames, COLUMNS)


def _support(density: np.ndarray) -> slice:
    """From the first to the last point that can be seen: what is thinner is less than a hair's breadth."""
    visible = np.flatnonzero(density > 0.02 * np.nanmax(density, initial=0.0))
    return slice(visible[0], visible[-1] + 1) if visible.size else slice(0)


def plot(_: GradientNormDistribution, numbers: pd.DataFrame) -> Figure:
    """Draw a violin for every epoch, quartiles and median inside, C as a line."""
    panels = [panel for _, panel in numbers.groupby("panel")]
    violins = sum(panel["epoch"].nunique() for panel in panels)
    rows = -(-violins // _VIOLINS_IN_A_ROW)
    columns = -(-len(panels) // rows)
    drawing = style.panels_figure(columns, height=2.1 * rows + 0.3)
    grid = drawing.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for index, (axes, panel) in enumerate(zip(grid.flat, panels, strict=False)):
        last = index % columns == columns - 1 or index == len(panels) - 1
        _draw(axes, panel, name_bound=last)
        chosen = style.write_chosen(panel.iloc[0]).split(", ")
        style.title(
            axes, str(panel["title"].iloc[0]), *(chosen if columns > 3 else [", ".join(chosen)])
        )
        if index + columns >= len(panels):
            axes.set_xlabel("Epoch")
            axes.tick_params(labelbottom=True)
        if index % columns == 0:
            axes.set_ylabel(style.log_label("Per-example gradient norm", panels=3))
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    style.note(
        drawing,
        "Every violin is as wide as the others: it shows the shape of a distribution. Bar: quartiles; "
        "point: median.",
    )
    return drawing


def _draw(axes: Axes, numbers: pd.DataFrame, name_bound: bool) -> None:
    for epoch, here in numbers.groupby("epoch"):
        density = here[here["quantity"] == "density"]
        # With equal areas, one narrow distribution would make slivers of all others.
        half = 0.44 * density["value"] / density["value"].max()
        axes.fill_betweenx(
            density["norm"], epoch - half, epoch + half, color=style.EASY, alpha=0.45, linewidth=0
        )
    quartiles = numbers[numbers["quantity"] == "quantile"].pivot(
        index="epoch", columns="value", values="norm"
    )
    axes.vlines(quartiles.index, quartiles[0.25], quartiles[0.75], color="black", linewidth=0.9)
    sns.scatterplot(
        x=quartiles.index, y=quartiles[0.5], color="white", edgecolor="black", linewidth=0.7, s=5,
        zorder=3, ax=axes,
    )  # fmt: skip
    bound = numbers["clipping_bound"].iloc[0]
    axes.axhline(bound, color=style.HARD, linestyle="--", linewidth=1)
    if name_bound:
        axes.annotate(
            f"C = {style.write_value(bound)}", (1.0, bound), (2, 0),
            xycoords=axes.get_yaxis_transform(), textcoords="offset points",
            ha="left", va="center", size=7, color=style.HARD,
        )  # fmt: skip
    axes.set(xlabel="", ylabel="")
    style.log_axis(axes, "y")
    first, last = int(numbers["epoch"].min()), int(numbers["epoch"].max())
    axes.set_xticks(sorted({first, (first + last) // 2, last}))
    axes.set_xticks(range(first, last + 1), minor=True)
    axes.grid(axis="x", visible=False)
