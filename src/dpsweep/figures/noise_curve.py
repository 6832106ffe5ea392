"""DP noise against batch size or number of steps, coloured by what it costs in accuracy."""

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dpsweep.analysis.frames import load_trials, stack
from dpsweep.analysis.statistics import noise
from dpsweep.choice import choose
from dpsweep.figures import style
from dpsweep.study import Study
from dpsweep.study.paths import Paths
from dpsweep.study.targets import NoiseAxes, NoiseCurve

COLUMNS = [
    "axes", "title", "problem", "epsilon", "epochs", "batch_size", "full_batch", "steps",
    "noise_multiplier", "quantity", "noise", "clipping_bound", "learning_rate", "macro_accuracy",
    "cross_fitted", "accuracy_difference", "repeats", "diverged",
]  # fmt: skip
_LABELS = {
    "effective": "σ / B",
    "cumulative": r"$\sigma\sqrt{T}$",
    "cumulative_effective": r"$\sigma\sqrt{T}\;/\;B$",
}
# Worse than this all look the same: the colours are for telling good from nearly good.
_DARKEST = -0.1


def noise_of_runs(
    study: Study, paths: Paths, figure: NoiseCurve, missing: list[Path] | None = None
) -> pd.DataFrame:
    """One row per point of every axes: noise of the run, and accuracy minus the best of its line.

    C and learning rate are tuned for every (epsilon, epochs, B); a line is one (epsilon, epochs).
    """
    trials = load_trials(paths, study.cells(figure.cells), missing)
    points = choose(trials, by=["epsilon", "epochs", "batch_size"])
    points = points.rename(columns={"centre": "macro_accuracy"})
    best = points.groupby(["epsilon", "epochs"])["macro_accuracy"].transform("max")
    points["accuracy_difference"] = points["macro_accuracy"] - best
    runs = points[["noise_multiplier", "steps", "batch_size"]].to_numpy()
    frames = []
    for index, axes in enumerate(figure.axes):
        values = [noise(axes.quantity, sigma, int(steps), int(size)) for sigma, steps, size in runs]
        frames.append(
            points.assign(axes=index, title=axes.title, quantity=axes.quantity, noise=values)
        )
    return stack(frames, COLUMNS)


def plot(figure: NoiseCurve, numbers: pd.DataFrame) -> Figure:
    """Draw a line for every (epsilon, epochs): all in one axes if there is one number of epochs.

    Otherwise every epsilon has a column. Noise grows with epochs about as fast as with 1/epsilon,
    so that in one axes the lines of several of both would lie on each other.
    """
    lowest = numbers["accuracy_difference"].min()
    norm = Normalize(max(lowest, _DARKEST) if lowest < 0 else -1e-3, 0)
    if numbers["epochs"].nunique() <= 1:
        drawing, key = _beside(figure, numbers, norm), "epsilon"
    else:
        drawing, key = _columns(figure, numbers, norm), "epochs"
    bar = drawing.colorbar(
        ScalarMappable(norm, style.SEQUENTIAL), ax=drawing.axes, aspect=30, pad=0.02,
        extend="min" if lowest < _DARKEST else "neither",
    )  # fmt: skip
    bar.set_label("Accuracy − best of the line")
    bar.ax.grid(False)
    drawing.legend(
        handles=_legend(figure, numbers, key), title={"epsilon": "ε", "epochs": "Epochs"}[key],
        loc="outside upper center", ncols=8,
    )  # fmt: skip
    return drawing


def _beside(figure: NoiseCurve, numbers: pd.DataFrame, norm: Normalize) -> Figure:
    count = len(figure.axes)
    drawing = style.panels_figure(count, height=2.5)
    grid = drawing.subplots(1, count, squeeze=False)[0]
    for index, (axes, settings) in enumerate(zip(grid, figure.axes, strict=True)):
        here = numbers[numbers["axes"] == index]
        _draw(axes, figure, settings, here, norm, "epsilon", labels=6)
        axes.set_title(settings.title)
        axes.set_ylabel(_LABELS[settings.quantity])
    return drawing


def _columns(figure: NoiseCurve, numbers: pd.DataFrame, norm: Normalize) -> Figure:
    budgets = sorted(numbers["epsilon"].unique())
    rows = len(figure.axes)
    drawing = style.panels_figure(2, height=1.7 * rows + 0.4)
    grid = drawing.subplots(rows, len(budgets), squeeze=False, sharey="row", sharex="row")
    for row, settings in enumerate(figure.axes):
        for axes, epsilon in zip(grid[row], budgets, strict=True):
            here = numbers[(numbers["axes"] == row) & (numbers["epsilon"] == epsilon)]
            labels = max(2, 12 // len(budgets))
            _draw(axes, figure, settings, here, norm, "epochs", labels)
            if row == 0:
                axes.set_title(f"ε = {style.write_value(epsilon)}")
        grid[row, 0].set_ylabel(f"{settings.title}\n{_LABELS[settings.quantity]}")
    return drawing


def _markers(numbers: pd.DataFrame, key: str) -> dict[float, str]:
    values = sorted(numbers[key].unique())
    return {value: style.MARKERS[i % len(style.MARKERS)] for i, value in enumerate(values)}


def _legend(figure: NoiseCurve, numbers: pd.DataFrame, key: str) -> list[Line2D]:
    entries = [
        Line2D(
            [], [], color="#999999", linewidth=0.7, marker=marker, markerfacecolor="#555555",
            markeredgecolor="none", label=style.write_value(value),
        )
        for value, marker in _markers(numbers, key).items()
    ]  # fmt: skip
    if figure.minimum_steps is not None and any(axes.x == "steps" for axes in figure.axes):
        label = f"{figure.minimum_steps} steps"
        entries.append(Line2D([], [], color=style.HARD, linestyle="--", linewidth=1, label=label))
    return entries


def _draw(
    axes: Axes,
    figure: NoiseCurve,
    settings: NoiseAxes,
    numbers: pd.DataFrame,
    norm: Normalize,
    key: str,
    labels: int,
) -> None:
    for value, marker in _markers(numbers, key).items():
        line = numbers[numbers[key] == value].sort_values(settings.x)
        axes.plot(line[settings.x], line["noise"], color="#999999", linewidth=0.7, zorder=1)
        axes.scatter(
            line[settings.x], line["noise"], c=line["accuracy_difference"],
            cmap=style.SEQUENTIAL, norm=norm, marker=marker, s=13, edgecolors="#333333",
            linewidths=0.3, zorder=2, plotnonfinite=True,
        )  # fmt: skip
    axes.margins(0.08)
    if settings.x == "batch_size":
        sizes = dict(zip(numbers["batch_size"], numbers["full_batch"].astype(bool), strict=True))
        style.batch_size_axis(axes, "x", sizes, labels)
        axes.set_xlabel(style.BATCH_SIZE_LABEL)
    else:
        style.log_axis(axes, "x")
        axes.set_xlabel("Steps T")
        if figure.minimum_steps is not None:
            axes.axvline(figure.minimum_steps, color=style.HARD, linestyle="--", linewidth=1)
    style.log_axis(axes, "y")
