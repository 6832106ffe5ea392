"""Heatmaps of accuracy over two axes of the grid, with frames around squares that are as good as the best."""

from __future__ import annotations

import re
from typing import Any, Literal, Self

from pydantic import model_validator

from dpsweep.analysis import frames, statistics
from dpsweep.base.lazy import matplotlib, np, pd, sns
from dpsweep.figures import style
from dpsweep.study import Paths, Study, choice, targets
from dpsweep.study.clipping import RULES
from dpsweep.study.grid import Panel

COLUMNS = [
    "panel", "title", "problem", "epsilon", "epochs", "batch_size", "full_batch", "clipping",
    "clipping_bound", "learning_rate", "macro_accuracy", "cross_fitted", "minimum", "maximum",
    "repeats", "diverged", "best", "as_good",
]  # fmt: skip

# Widths are in inches. The narrowest square holds ".123" in the smallest legible type, within its frame.
_SMALLEST_TYPE, _LARGEST_TYPE = 5.5, 7.0  # points
# Of four characters, and the frame of the best cell, in type of one point.
_WIDTH_OF_A_POINT = 2.65 / 72
_NARROWEST, _WIDEST = _SMALLEST_TYPE * _WIDTH_OF_A_POINT, 0.55
_FEWEST = 4  # columns beside another panel, so that the label of the axis has room
_ROW_LABELS, _GAP = 0.7, 0.15  # labels and title of the rows; space between panels


class Heatmap(targets.Figure):
    """Mean macro accuracy over two axes; everything else is tuned.

    Squares that are as good as the best of their panel are framed (`dpsweep.analysis.statistics`).

    A frame for `draw` has columns ``x``, ``y`` and ``macro_accuracy``; optional ``panel`` and ``title`` (of
    problems side by side), ``full_batch`` (whether the batch is the training set), ``learning_rate``,
    ``as_good`` (squares with a frame) and, if ``y`` is not the batch size, ``batch_size``.
    """

    family = "heatmap"
    title = "Accuracy map"
    tunes = True
    shows_means = True
    marks = ("framed square", "panel")
    single = ("epsilon", "epochs")

    x: Literal["clipping_bound", "epsilon"] = "clipping_bound"
    y: Literal["batch_size", "clipping_bound"] = "batch_size"
    colour_scale: Literal["shared", "panel"] = "shared"
    """one colour scale for all panels, or one for each panel (from worst to best)"""
    panels: targets.Panels

    @model_validator(mode="after")
    def _two_axes(self) -> Self:
        if self.x == self.y:
            raise ValueError(f"x and y are both {self.x}; allowed: two different axes")
        return self

    def drawn_axes(self) -> tuple[str, ...]:
        """Return the two axes of the map."""
        return (self.x, self.y)

    def columns(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the columns of a frame for `draw`."""
        return (self.x, self.y), ("macro_accuracy", "batch_size")

    def compute(self, study: Study, paths: Paths, missing: targets.Missing = None) -> pd.DataFrame:
        """Return one row per square: axes, tuned settings, accuracy, whether it is as good as the best."""

        def of_panel(panel: Panel) -> pd.DataFrame:
            trials = frames.load_trials(study, paths, panel.cells(), missing)
            cells = choice.choose(trials, by=[self.y, self.x])
            cells = cells.rename(columns={"centre": "macro_accuracy"})
            return cells.assign(
                best=statistics.first_best(cells["selection_accuracy"]),
                as_good=statistics.as_good_as_best(cells, trials),
            )

        return frames.stack_panels(self.panels, of_panel, COLUMNS)

    def plot(self, numbers: pd.DataFrame) -> matplotlib.figure.Figure:
        """Draw a heatmap for each problem, with one colour scale for all or one for each.

        Accuracies are in [0, 1], or in per cent if any is above 1.
        """
        numbers = numbers.assign(
            row=_tick_labels(numbers, self.y), column=_tick_labels(numbers, self.x)
        )
        panels = [panel for _, panel in numbers.groupby("panel")]
        labels = _labels(numbers, self.y, "row")
        percent = bool((numbers["macro_accuracy"] > 1).any())
        shared = self.colour_scale == "shared"
        # As many panels side by side as have legible squares.
        page = style.look().page_width
        columns = [max(each["column"].nunique(), _FEWEST if panels[1:] else 1) for each in panels]
        fitting = int((page - _ROW_LABELS) / (max(columns) * _NARROWEST + _GAP))
        rows = -(-len(panels) // max(1, fitting))
        across = -(-len(panels) // rows)  # as many in each row
        widths = [max(columns[start::across]) for start in range(across)]
        margins = _ROW_LABELS + _GAP * (across - 1) + (0.7 if shared else 0.1)
        square = min(_WIDEST, (page - margins) / sum(widths))
        # If B is not an axis, it was tuned for every square, and the square names it.
        lines = 1 if "batch_size" in (self.x, self.y) else 3
        height = (0.08 + 0.12 * lines) * len(labels) + (0.75 if shared else 1.1)
        longest = 0.06 * max(map(_length, numbers["column"]))
        turned = longest > square  # the labels of columns, which would touch
        height += longest * turned
        width = max(margins + square * sum(widths), 2.4)
        drawing = matplotlib.figure.Figure(figsize=(width, rows * height), layout="constrained")
        grid = drawing.subplots(rows, across, squeeze=False, width_ratios=widths)
        # What a panel's columns would fill of its place. The fullest panel takes all of it.
        filled = [each["column"].nunique() / widths[i % across] for i, each in enumerate(panels)]
        for position, (axes, panel) in enumerate(zip(grid.flat, panels, strict=False)):
            limits = (numbers if shared else panel)["macro_accuracy"].agg(["min", "max"])
            _draw(axes, self, panel, labels, limits, square, lines > 1, percent)
            axes.tick_params(axis="x", rotation=90 if turned else 0)
            _narrow(axes, filled[position] / max(filled))
            if position % across == 0:
                axes.set_ylabel(style.LABELS[self.y])
            else:
                axes.set_yticks([])
            if not shared:
                _colour_bar(drawing, [axes], "bottom", percent)
        for axes in grid.flat[len(panels) :]:
            axes.set_visible(False)
        if shared:
            _colour_bar(drawing, list(grid.flat[: len(panels)]), "right", percent)
        return drawing


def _draw(
    axes: matplotlib.axes.Axes,
    figure: Heatmap,
    panel: pd.DataFrame,
    rows: list[str],
    limits: pd.Series[float],
    square: float,
    in_square: bool,
    percent: bool,
) -> None:
    # Every panel has a row for every value of any panel, the smallest at the bottom.
    columns = _labels(panel, figure.x, "column")
    panel = panel.assign(text=_in_squares(panel, in_square, percent))
    wide, texts, marks = (
        panel.pivot(index="row", columns="column", values=values).reindex(rows[::-1])[columns]
        for values in ("macro_accuracy", "text", "as_good")
    )
    size = min(_LARGEST_TYPE, square / _WIDTH_OF_A_POINT)
    readable = size >= _SMALLEST_TYPE
    sns.heatmap(
        wide, annot=texts.fillna("").to_numpy() if readable else False, fmt="",
        annot_kws={"size": min(size, 5.5) if in_square else size}, cmap=style.look().colour_map,
        vmin=limits["min"], vmax=limits["max"], cbar=False, linewidths=0.4, linecolor="white",
        xticklabels=columns, yticklabels=rows[::-1], ax=axes,
    )  # fmt: skip
    # seaborn does not annotate NaN; squares outside the grid of this panel stay empty.
    for row, column in np.argwhere(wide.isna() & texts.notna()) if readable else ():
        axes.text(column + 0.5, row + 0.5, "–", ha="center", va="center", size=size)
    axes.set_facecolor("#EEEEEE")
    axes.tick_params(length=0, pad=2)
    axes.tick_params(axis="y", rotation=0)
    axes.set(xlabel=style.LABELS[figure.x], ylabel="")
    title, framed = panel["title"].iloc[0], panel[panel["as_good"]]
    style.title(axes, title, *([] if in_square else _subtitle(framed, len(panel))))
    _frame(axes, marks.eq(True).to_numpy())


def _narrow(axes: matplotlib.axes.Axes, share: float) -> None:
    """Draw a panel in the middle share of its place, so that the squares of all panels are equally wide."""

    def locate(axes: Any, _: object) -> Any:
        place = axes.get_position(original=True)
        return place.shrunk(share, 1).anchored("C", place)

    axes.set_axes_locator(locate)


def _length(label: str) -> int:
    """Return the number of characters that are seen of a label, which may be mathematics."""
    return len(re.sub(r"\\cdot|[${}^]", "", label))


def _subtitle(framed: pd.DataFrame, squares: int) -> list[str]:
    """Write the number of framed squares and their learning rates; return no lines without such squares."""
    if framed.empty:
        return []
    rates = style.write_values(framed["learning_rate"].agg(["min", "max"]), style.write_rate)
    chosen = [f"η = {' to '.join(rates.values())}"] if rates else []
    return [f"framed: {len(framed)} of {squares}", *chosen]


def _frame(axes: matplotlib.axes.Axes, marked: np.typing.NDArray[np.bool_]) -> None:
    """Draw the outline of marked squares: the sides that no two of them share."""
    around = np.pad(marked, 1)
    sides = []
    for row, column in np.argwhere(marked):
        left, right, top, bottom = column, column + 1, row, row + 1
        for step, side in (
            ((-1, 0), ((left, top), (right, top))),
            ((1, 0), ((left, bottom), (right, bottom))),
            ((0, -1), ((left, top), (left, bottom))),
            ((0, 1), ((right, top), (right, bottom))),
        ):
            if not around[row + 1 + step[0], column + 1 + step[1]]:
                sides.append(side)
    look: dict[str, Any] = {"capstyle": "projecting", "clip_on": False, "zorder": 5}
    for colour, width in (("white", 2.6), (style.BEST, 1.4)):
        outline = matplotlib.collections.LineCollection(
            sides, colors=colour, linewidths=width, **look
        )
        axes.add_collection(outline, autolim=False)


def _in_squares(panel: pd.DataFrame, with_settings: bool, percent: bool) -> list[str]:
    """Return the text of every square: its accuracy and, if asked, the chosen settings below."""
    accuracies = [_three_digits(value, percent) for value in panel["macro_accuracy"]]
    if not with_settings:
        return accuracies
    chosen = (style.write_chosen(row).split(", ") for _, row in panel.iterrows())
    return ["\n".join([text, *settings]) for text, settings in zip(accuracies, chosen, strict=True)]


def _labels(numbers: pd.DataFrame, axis: str, written: str) -> list[str]:
    """Return the labels along an axis in ascending order, the full batch and rules without a bound last.

    Args:
        numbers: the squares.
        axis: the column of the values.
        written: the column of their labels.
    """
    by = ["full_batch", axis] if axis == "batch_size" else [axis]
    return list(numbers.sort_values(by)[written].unique())


def _tick_labels(numbers: pd.DataFrame, axis: str) -> list[str]:
    if axis == "batch_size":
        pairs = zip(numbers["batch_size"], numbers["full_batch"], strict=True)
        return [style.write_batch_size(int(size), bool(full)) for size, full in pairs]
    texts = style.write_values(numbers[axis])
    # A clipping rule without a bound has its title.
    rules = numbers["clipping"] if axis == "clipping_bound" else [""] * len(numbers)
    return [
        RULES[rule].title if rule in RULES else texts[value]
        for value, rule in zip(numbers[axis], rules, strict=True)
    ]


def _three_digits(value: float, percent: bool) -> str:
    if percent:
        return "100" if value >= 99.95 else f"{value:.1f}"
    return "1.00" if value >= 0.9995 else f"{value:.3f}".removeprefix("0")


def _colour_bar(
    drawing: matplotlib.figure.Figure,
    panels: list[matplotlib.axes.Axes],
    location: str,
    percent: bool,
) -> None:
    bar = drawing.colorbar(
        panels[0].collections[0], ax=panels, location=location, aspect=30, pad=0.02
    )
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=2, pad=1.5, labelsize=style.look().points(6.5))
    label = "Macro accuracy (%)" if percent else "Macro accuracy"
    bar.set_label(label, size=style.look().points(7), labelpad=2)
    if location == "bottom":
        # Only the ends have labels, aligned inwards, so that they do not touch the next panel's bar.
        ends = panels[0].collections[0].get_clim()
        bar.set_ticks(ends, labels=[_three_digits(end, percent) for end in ends])
        left, right = bar.ax.get_xticklabels()
        left.set_horizontalalignment("left")
        right.set_horizontalalignment("right")
