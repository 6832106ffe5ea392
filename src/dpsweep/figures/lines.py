"""Lines over a grid: centres, repeats, and under them the settings that were chosen for each point.

The numbers have a row for each point, with ``panel, title, line, label``, what lies along the x
axis, ``centre, minimum, maximum, repeats``, the chosen settings, and the columns of `with_repeats`.
Legends list lines in the order of ``line``.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dpsweep.analysis import frames as tidy
from dpsweep.figures import style
from dpsweep.study.captions import FEWEST_FOR_A_BAND
from dpsweep.study.choice import CELL, repeats

_STRIP, _TALL_STRIP = 0.4, 0.64
"""Heights of a strip of chosen settings, inches: with two labels on its axis, and with three."""
_APART = 1.2  # points between lines, where those of the same values would hide each other
_LETTERS = {"batch_size": "B", "learning_rate": "η", "clipping_bound": "C"}


@dataclass(frozen=True)
class _Look:
    """How the lines of a panel are drawn.

    Attributes:
        colours: by label, in the order of the lines.
        markers: by label.
        bands: whether repeats are a band; if not, every one is a point. It is the same in the whole
            figure, as a band of five seeds is wider than one of three that says the same.
    """

    colours: dict[str, str]
    markers: dict[str, str]
    bands: bool

    def handle(self, label: str) -> Line2D:
        """An entry of a legend."""
        return Line2D([], [], color=self.colours[label], marker=self.markers[label], label=label)

    def apart(self, axes: Axes, label: str) -> AbstractContextManager[None]:
        """Draw a line a little above or below its values, so that it hides no other."""
        places = list(self.colours)
        return style.aside(axes, up=_APART * (places.index(label) - (len(places) - 1) / 2))


def with_repeats(points: pd.DataFrame, trials: pd.DataFrame) -> pd.DataFrame:
    """Points with their macro accuracy in every repeat: columns ``seed_1``, ``seed_2``, ..."""
    accuracy = repeats(trials).pivot(index=CELL, columns="seed", values="macro_accuracy")
    return points.merge(accuracy.add_prefix("seed_"), left_on=CELL, right_index=True, how="left")


def seed_columns(points: pd.DataFrame) -> list[str]:
    """The columns of `with_repeats`."""
    return [name for name in points.columns if name.startswith("seed_")]


def stack(frames: Iterable[pd.DataFrame], columns: Sequence[str]) -> pd.DataFrame:
    """The rows of all frames, with these columns and those of `with_repeats`."""
    frames = list(frames)
    seeds = dict.fromkeys(name for frame in frames for name in seed_columns(frame))
    return tidy.stack(frames, [*columns, *seeds])


def plot(
    numbers: pd.DataFrame,
    x: str,
    colours: Sequence[Sequence[str]],
    *,
    chosen: Sequence[str],
    height: float,
    share_y: bool,
    apart: bool = False,
) -> tuple[Figure, list[Axes]]:
    """Draw a panel for each ``panel``, a line in it for each ``label``, strips of settings below.

    Args:
        numbers: what is drawn.
        x: the column along the x axis; its axis is left to the caller (the last axes of a column).
        colours: for every panel, one for each of its lines.
        chosen: the settings that have a strip: ``batch_size``, ``learning_rate``, ``clipping_bound``.
        height: of a panel without strips, inches.
        share_y: whether all panels have one vertical axis; where not, a note says so.
        apart: whether lines of the same centres are common: they are then drawn a little apart, as
            those of the strips always are.

    Returns:
        The figure and the panels' axes, from left to right.
    """
    panels = [panel for _, panel in numbers.groupby("panel", sort=False)]
    strips = _strip_heights([numbers] if share_y else panels, chosen)
    drawing = style.panels_figure(len(panels), height + sum(strips))
    ratios = [height, *strips]
    grid = drawing.subplots(
        len(ratios), len(panels), squeeze=False, sharex="col", height_ratios=ratios,
        sharey="row" if share_y else False,
    )  # fmt: skip
    legends = []
    everywhere = numbers.drop_duplicates(["panel", "label"]).sort_values("line")["label"]
    order = list(everywhere.unique())
    bands = bool(numbers["repeats"].min() >= FEWEST_FOR_A_BAND)
    for axes, panel, its_colours in zip(grid.T, panels, colours, strict=True):
        labels = list(dict.fromkeys(panel["label"]))
        # Panels that share lines share their markers.
        marked = order if everywhere.duplicated().any() else labels
        look = _Look(
            colours=dict(zip(labels, its_colours, strict=True)),
            markers=dict(zip(marked, style.MARKERS * len(marked), strict=False)),
            bands=bands,
        )
        for label in labels:
            line = panel[panel["label"] == label]
            with look.apart(axes[0], label) if apart else nullcontext():
                _repeats(axes[0], line, x, label, look)
                _line(axes[0], line, x, "centre", label, look)
            for strip, setting in zip(axes[1:], chosen, strict=True):
                with look.apart(strip, label):
                    _line(strip, line, x, setting, label, look)
        for strip in axes[1:]:
            strip.margins(y=0.25)
            for line in strip.lines:
                line.set(linewidth=0.8, markersize=2.8)
        legends.append(
            (
                axes[0],
                str(panel["title"].iloc[0]),
                [look.handle(each) for each in labels],
            )
        )  # fmt: skip
    for row, setting in zip(grid[1:], chosen, strict=True):
        for strip, panel in zip(row, panels, strict=True):
            _setting_axis(strip, numbers if share_y else panel, setting)
        row[0].set_ylabel(_LETTERS[setting], rotation=0, va="center", ha="right")
    style.legends(drawing, legends, order)
    if len(panels) > 1 and not share_y:
        style.note(drawing, "The vertical axes of the panels differ.")
    return drawing, list(grid[0])


def _strip_heights(panels: Sequence[pd.DataFrame], chosen: Sequence[str]) -> list[float]:
    """Strips that have a vertical axis with three labels are taller, so that these do not touch."""
    return [
        _TALL_STRIP if any(panel[setting].nunique() > 2 for panel in panels) else _STRIP
        for setting in chosen
    ]


def _line(axes: Axes, line: pd.DataFrame, x: str, y: str, label: str, look: _Look) -> None:
    # A line ends where there is no number, and goes on after it.
    colour, marker = look.colours[label], look.markers[label]
    axes.plot(line[x], line[y].astype(float), color=colour, marker=marker, markeredgewidth=0)


def _repeats(axes: Axes, line: pd.DataFrame, x: str, label: str, look: _Look) -> None:
    colour, marker = look.colours[label], look.markers[label]
    if look.bands:
        axes.fill_between(
            line[x], line["minimum"], line["maximum"], color=colour, alpha=0.2, linewidth=0
        )
    elif line["repeats"].max() > 1:
        for seed in seed_columns(line):
            axes.scatter(
                line[x], line[seed], color=colour, marker=marker, s=7, alpha=0.6, linewidth=0
            )


def _setting_axis(axes: Axes, points: pd.DataFrame, setting: str) -> None:
    values = points[points[setting].notna()].drop_duplicates(setting)
    if values.empty:
        axes.set_yticks([])
        return
    match setting:
        case "batch_size":
            sizes = zip(values["batch_size"], values["full_batch"], strict=True)
            texts = [
                style.write_batch_size(int(size), bool(full), power=True) for size, full in sizes
            ]
        case "learning_rate":
            texts = [style.write_rate(rate) for rate in values[setting]]
        case _:
            texts = [style.write_value(bound) for bound in values[setting]]
    style.value_axis(axes, "y", list(values[setting]), texts, labels=3)
    axes.tick_params(axis="y", labelsize=style.SMALL)
