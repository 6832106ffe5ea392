"""Accuracy over two axes of the grid, the best cell marked."""

import textwrap
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from dpsweep.analysis.frames import load_trials, stack
from dpsweep.analysis.statistics import best_position
from dpsweep.choice import choose
from dpsweep.figures import style
from dpsweep.study import Study
from dpsweep.study.paths import Paths
from dpsweep.study.targets import Heatmap

_LABELS = {
    "batch_size": style.BATCH_SIZE_LABEL,
    "clipping_bound": style.CLIPPING_LABEL,
    "epsilon": style.EPSILON_LABEL,
}
COLUMNS = [
    "panel", "title", "problem", "epsilon", "epochs", "batch_size", "full_batch", "clipping",
    "clipping_bound", "learning_rate", "macro_accuracy", "cross_fitted", "minimum", "maximum",
    "repeats", "diverged", "best",
]  # fmt: skip


def accuracy_over_grid(
    study: Study, paths: Paths, figure: Heatmap, missing: list[Path] | None = None
) -> pd.DataFrame:
    """One row per square: its axes, what was tuned, mean macro accuracy, whether it is chosen."""
    panels = []
    for index, panel in enumerate(figure.panels):
        trials = load_trials(paths, study.cells(panel), missing)
        cells = choose(trials, by=[figure.y, figure.x])
        cells = cells.rename(columns={"centre": "macro_accuracy"})
        cells["best"] = cells.index == best_position(cells["selection_accuracy"])
        cells["panel"] = index
        cells["title"] = panel.title
        panels.append(cells)
    return stack(panels, COLUMNS)


# -- layout: everything in inches, so that squares have one size in all panels ---------------

# A square is wide enough for ".123" in the smallest type that can be read.
_SMALLEST_TYPE, _LARGEST_TYPE = 5.0, 7.0  # points
_POINT = 1 / 72
_FOUR_CHARACTERS = 2.4 * _POINT  # for every point of type size
_MARGIN = 0.02
_NARROWEST, _WIDEST = _SMALLEST_TYPE * _FOUR_CHARACTERS + _MARGIN, 0.5
_TITLE_LINE, _AXIS_LABEL, _BAR = 0.15, 0.18, 0.09


def _text_width(text: str, size: float) -> float:
    """Width of a label, inches; mathematics is about as wide as what it shows."""
    shown = text.replace("$", "").replace("{", "").replace("}", "").replace("\\cdot", "·")
    return 0.62 * size * _POINT * len(shown)


@dataclass(frozen=True)
class _Panel:
    title: str
    colours: pd.DataFrame  # labels of y by labels of x
    best: tuple[str, str] | None  # (y, x)

    @property
    def label_width(self) -> float:
        return max(_text_width(label, 7) for label in self.colours.index) + 0.07

    @property
    def tick_width(self) -> float:
        return max(_text_width(label, 7) for label in self.colours.columns)


def _panel(figure: Heatmap, title: str, numbers: pd.DataFrame) -> _Panel:
    x, y = (_labels(numbers, axis) for axis in (figure.x, figure.y))
    square = numbers.assign(x=x, y=y)
    order = {
        axis: list(dict.fromkeys(square.sort_values(name)[axis]))
        for axis, name in (("x", figure.x), ("y", figure.y))
    }
    best = square[square["best"]]
    return _Panel(
        title,
        square.pivot(index="y", columns="x", values="macro_accuracy").loc[order["y"], order["x"]],
        (best["y"].item(), best["x"].item()) if len(best) else None,
    )


def _labels(numbers: pd.DataFrame, axis: str) -> list[str]:
    if axis == "batch_size":
        pairs = zip(numbers["batch_size"], numbers["full_batch"], strict=True)
        return [style.write_batch_size(int(size), bool(full)) for size, full in pairs]
    if axis == "clipping_bound":
        kinds = zip(numbers["clipping_bound"], numbers["clipping"], strict=True)
        return [style.write_clipping(bound, kind) for bound, kind in kinds]
    return [style.write_value(value) for value in numbers[axis]]


def _rows(panels: list[_Panel], room: float) -> list[list[_Panel]]:
    """Panels in as few rows as leave every square wide enough to be read."""
    for per_row in range(len(panels), 1, -1):
        rows = [panels[start : start + per_row] for start in range(0, len(panels), per_row)]
        if all(_square_width(row, room) >= _NARROWEST for row in rows):
            return rows
    return [[panel] for panel in panels]


def _gaps(row: list[_Panel]) -> list[float]:
    """Space before every panel: its tick labels, unless they repeat those of the first."""
    return [
        row[0].label_width + _AXIS_LABEL
        if position == 0
        else 0.12
        if panel.colours.index.equals(row[0].colours.index)
        else panel.label_width + 0.12
        for position, panel in enumerate(row)
    ]


def _square_width(row: list[_Panel], room: float) -> float:
    return (room - sum(_gaps(row))) / sum(len(panel.colours.columns) for panel in row)


def plot(figure: Heatmap, numbers: pd.DataFrame) -> Figure:
    """Draw the squares of all panels in one size; one colour scale, or one for each panel."""
    present = [numbers[numbers["panel"] == index] for index in range(len(figure.panels))]
    panels = [
        _panel(figure, panel.title, part)
        for panel, part in zip(figure.panels, present, strict=True)
        if len(part)
    ]
    shared = figure.colour_scale == "shared"
    right = 0.62 if shared else 0.08
    rows = _rows(panels, style.TEXT_WIDTH - right)
    width = min([_WIDEST, *(_square_width(row, style.TEXT_WIDTH - right) for row in rows)])
    height = float(np.clip(0.75 * width, 0.17, 0.27))
    upright = any(panel.tick_width > width for panel in panels)
    tick_height = max(panel.tick_width for panel in panels) + 0.05 if upright else 0.15
    below = tick_height + _AXIS_LABEL + (0.0 if shared else 0.5)

    titles = [[_wrapped(panel, width) for panel in row] for row in rows]
    above = [max(title.count("\n") + 1 for title in row) * _TITLE_LINE + 0.05 for row in titles]
    squares = [max(len(panel.colours.index) for panel in row) * height for row in rows]
    drawing = Figure(
        figsize=(
            right
            + max(
                sum(_gaps(row)) + width * sum(len(panel.colours.columns) for panel in row)
                for row in rows
            ),
            sum(above) + sum(squares) + below * len(rows),
        )
    )
    place = _Placer(drawing)
    scale = _scale(numbers["macro_accuracy"])
    top = drawing.get_figheight()
    for row, row_titles, row_above, row_squares in zip(rows, titles, above, squares, strict=True):
        top -= row_above
        left = 0.0
        for panel, title, gap in zip(row, row_titles, _gaps(row), strict=True):
            left += gap
            size = (len(panel.colours.columns) * width, len(panel.colours.index) * height)
            axes = place(left, top - size[1], *size)
            norm = scale if shared else _scale(panel.colours.to_numpy())
            _draw(axes, panel, norm, upright, width)
            axes.set_title(title, linespacing=1.1, pad=4)
            wide = _text_width(_LABELS[figure.x], 8) < size[0] + 0.1
            axes.set_xlabel(_LABELS[figure.x] if wide else _LABELS[figure.x].split()[-1])
            if gap == 0.12:
                axes.tick_params(labelleft=False)
            if panel is row[0]:
                axes.set_ylabel(_LABELS[figure.y])
            if not shared:
                bar = place(left, top - size[1] - below + 0.33, size[0], _BAR)
                _colour_bar(drawing, bar, norm, "horizontal")
            left += size[0]
        if shared:
            bar = place(left + 0.1, top - row_squares, _BAR, row_squares)
            _colour_bar(drawing, bar, scale, "vertical")
        top -= row_squares + below
    return drawing


class _Placer:
    """Adds axes at a place in inches from the lower left corner."""

    def __init__(self, figure: Figure) -> None:
        self.figure = figure

    def __call__(self, left: float, bottom: float, width: float, height: float) -> Axes:
        across, up = self.figure.get_size_inches()
        return self.figure.add_axes((left / across, bottom / up, width / across, height / up))


def _wrapped(panel: _Panel, width: float) -> str:
    room = max(len(panel.colours.columns) * width + 0.1, 0.8)
    # "ε = 8" stays on one line.
    title = panel.title.replace(" = ", "\u00a0=\u00a0")
    return "\n".join(textwrap.wrap(title, int(room / (0.58 * 8 * _POINT)))) or " "


def _scale(values: "pd.Series[float] | np.ndarray") -> Normalize:
    finite = np.asarray(values, dtype=np.float64)
    finite = finite[np.isfinite(finite)]
    if not finite.size:
        return Normalize(0, 1)
    low, high = float(finite.min()), float(finite.max())
    return Normalize(low, high) if high > low else Normalize(low - 0.005, high + 0.005)


def _draw(axes: Axes, panel: _Panel, norm: Normalize, upright: bool, width: float) -> None:
    values = np.ma.masked_invalid(panel.colours.to_numpy(dtype=np.float64))
    axes.set_facecolor("#EEEEEE")
    axes.grid(False)
    mesh = axes.pcolormesh(
        values, cmap=style.SEQUENTIAL, norm=norm, edgecolor="white", linewidth=0.4
    )
    axes.set_xticks(
        np.arange(values.shape[1]) + 0.5,
        list(panel.colours.columns),
        rotation=90 if upright else 0,
    )
    axes.set_yticks(np.arange(values.shape[0]) + 0.5, list(panel.colours.index))
    axes.tick_params(length=0, pad=2)
    axes.spines[:].set_visible(False)
    size = min(_LARGEST_TYPE, (width - _MARGIN) / _FOUR_CHARACTERS)
    if size >= _SMALLEST_TYPE - 1e-9:
        for (row, column), value in np.ndenumerate(values.data):
            red, green, blue, _ = mesh.cmap(norm(value))
            dark = not np.isnan(value) and 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
            axes.text(
                column + 0.5, row + 0.48, _three_digits(value), ha="center", va="center",
                size=size, color="white" if dark else "black",
            )  # fmt: skip
    if panel.best is not None:
        row = list(panel.colours.index).index(panel.best[0])
        column = list(panel.colours.columns).index(panel.best[1])
        for colour, line in (("white", 2.6), (style.BEST, 1.4)):
            axes.add_patch(
                Rectangle(
                    (column, row),
                    1,
                    1,
                    fill=False,
                    edgecolor=colour,
                    linewidth=line,
                    clip_on=False,
                    zorder=5,
                )
            )


def _three_digits(value: float) -> str:
    if np.isnan(value):
        return "–"
    return "1.00" if value >= 0.9995 else f"{value:.3f}".removeprefix("0")


def _colour_bar(drawing: Figure, axes: Axes, norm: Normalize, direction: str) -> None:
    bar = drawing.colorbar(ScalarMappable(norm, style.SEQUENTIAL), cax=axes, orientation=direction)
    bar.outline.set_visible(False)
    bar.locator = MaxNLocator(4 if direction == "horizontal" else 6)
    bar.update_ticks()
    axes.grid(False)
    axes.tick_params(length=2, pad=1.5, labelsize=6.5)
    bar.set_label("Macro accuracy", size=7, labelpad=1.5)
