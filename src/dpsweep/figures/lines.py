"""Lines over a grid: centres, repeats and, in strips below, the settings that were chosen for each point.

The numbers have a row for each point, with columns ``panel, title, line, label``, the one along the x axis,
``centre, minimum, maximum, repeats``, the chosen settings, and those of `with_repeats`. Legends list lines in
the order of ``line``.

Optimal bounds are lines with the range of their draws (`plot_bounds`). A bound may be 0, which a
logarithmic axis cannot show: a band down to 0 would fill the panel. So ranges are bars, and values far
below the lines are drawn on the lower edge.
"""

from collections.abc import Callable, Iterable, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpsweep.analysis.frames import seed_columns, stack
from dpsweep.figures import style
from dpsweep.study.captions import FEWEST_FOR_A_BAND
from dpsweep.study.choice import CELL, repeats
from dpsweep.study.targets import Line, LinePanel

_STRIP, _TALL_STRIP = 0.4, 0.64
"""Heights in inches of a strip with two labels on its axis, and with three."""
_APART = 1.2  # points between lines that would otherwise hide each other
_BARS_APART = 2.2  # points between the bars of lines that share their horizontal positions
_LETTERS = {"batch_size": "B", "learning_rate": "η", "clipping_bound": "C"}

EDGE = "Values below the lower edge, 0 too, are drawn on it. "
"""The note of a figure with bounds below the lower edge."""


def with_repeats(points: pd.DataFrame, trials: pd.DataFrame) -> pd.DataFrame:
    """Add the macro accuracy of every repeat to points: columns ``seed_1``, ``seed_2``, ..."""
    accuracy = repeats(trials).pivot(index=CELL, columns="seed", values="macro_accuracy")
    return points.merge(accuracy.add_prefix("seed_"), left_on=CELL, right_index=True, how="left")


def stack_lines(
    panels: Sequence[LinePanel], numbers: Callable[[Line], pd.DataFrame], columns: Sequence[str]
) -> pd.DataFrame:
    """Compute the numbers of each line of each panel, and stack them with columns for panel and line."""
    frames = [
        numbers(line).assign(
            panel=panel_index, title=panel.title, line=line_index, label=line.label
        )
        for panel_index, panel in enumerate(panels)
        for line_index, line in enumerate(panel.lines)
    ]
    return stack(frames, columns)


def plot(
    numbers: pd.DataFrame,
    x: str,
    palettes: Sequence[dict[str, str]],
    *,
    chosen: Sequence[str],
    height: float,
    x_label: str,
    y_label: str,
    share_y: bool,
    base: float = 10,
    apart: bool = False,
) -> tuple[Figure, list[tuple[Axes, pd.DataFrame]]]:
    """Draw a panel for each ``panel`` with a line for each ``label``, and strips of settings below.

    Args:
        numbers: the points.
        x: the column along the x axis.
        palettes: for each panel the colours of its lines by label, in the order of the lines.
        chosen: the settings that have a strip if any value is known: ``batch_size``, ``learning_rate``,
            ``clipping_bound``.
        height: of a panel without strips, inches.
        x_label: label of the x axis, which is logarithmic.
        y_label: label of the first panel's y axis.
        share_y: whether all panels share one y axis; otherwise a note under the figure points this out.
        base: of the logarithm of the x axis.
        apart: whether to draw lines a little apart, as in strips, because many have the same centres.

    Returns:
        The figure, and the axes and numbers of each panel, from left to right.

    Raises:
        ValueError: two lines of a panel have one label, and would be drawn as one.
    """
    for (_, label), points in numbers.groupby(["panel", "label"]):
        if points["line"].nunique() > 1:
            raise ValueError(f"label: found {label} for several lines of a panel")
    chosen = [setting for setting in chosen if numbers[setting].notna().any()]
    together = [numbers] if share_y else [panel for _, panel in numbers.groupby("panel")]
    heights = [height, *_strip_heights(together, chosen)]
    drawing, panels = style.panels(
        numbers, sum(heights), len(heights), sharex="col", sharey="row" if share_y else False,
        height_ratios=heights,
    )  # fmt: skip
    legends = []
    everywhere = numbers.drop_duplicates(["panel", "label"]).sort_values("line")["label"]
    order = list(everywhere.unique())
    # Bands in all panels or in none: a band of five seeds is wider than one of three, with the same scatter.
    bands = bool(numbers["repeats"].min() >= FEWEST_FOR_A_BAND)
    for ((top, *strips), panel), colours in zip(panels, palettes, strict=True):
        # Panels with the same lines have the same markers.
        marked = order if everywhere.duplicated().any() else list(colours)
        markers = dict(zip(marked, style.MARKERS * len(marked), strict=False))
        for place, (label, colour) in enumerate(colours.items()):
            line, look = panel[panel["label"] == label], {"color": colour, "marker": markers[label]}
            up = _APART * (place - (len(colours) - 1) / 2)
            with style.aside(top, up=up if apart else 0):
                _repeats(top, line, x, look, bands)
                _line(top, line, x, "centre", look)
            for strip, setting in zip(strips, chosen, strict=True):
                with style.aside(strip, up=up):
                    _line(strip, line, x, setting, look)
        for strip, setting in zip(strips, chosen, strict=True):
            strip.margins(y=0.25)
            for drawn in strip.lines:
                drawn.set(linewidth=0.8, markersize=2.8)
            _setting_axis(strip, numbers if share_y else panel, setting)
        room = style.room_for_labels(len(panels))
        style.value_axis(top, "x", list(panel[x]), base=base, labels=room)
        [top, *strips][-1].set_xlabel(style.log_label(x_label, len(panels)))
        handles = [
            style.legend_line(label, colour, marker=markers[label])
            for label, colour in colours.items()
        ]
        legends.append((top, panel["title"].iloc[0], handles))
    first, *strips = panels[0][0]
    for strip, setting in zip(strips, chosen, strict=True):
        strip.set_ylabel(_LETTERS[setting], rotation=0, va="center", ha="right")
    first.set_ylabel(y_label)
    style.legends(drawing, legends, order)
    if len(panels) > 1 and not share_y:
        style.note(drawing, style.DIFFERENT_AXES)
    return drawing, [(column[0], panel) for column, panel in panels]


def _strip_heights(panels: Sequence[pd.DataFrame], chosen: Sequence[str]) -> list[float]:
    """Return the height of each strip; three labels on its vertical axis need more room."""
    return [
        _TALL_STRIP if any(panel[setting].nunique() > 2 for panel in panels) else _STRIP
        for setting in chosen
    ]


def _line(axes: Axes, line: pd.DataFrame, x: str, y: str, look: dict[str, str]) -> None:
    # A NaN interrupts the line.
    axes.plot(line[x], line[y].astype(float), markeredgewidth=0, **look)  # type: ignore[arg-type]


def _repeats(axes: Axes, line: pd.DataFrame, x: str, look: dict[str, str], bands: bool) -> None:
    if bands:
        style.band(axes, line, x, "minimum", "maximum", look["color"])
    elif line["repeats"].max() > 1:
        for seed in seed_columns(line):
            axes.scatter(line[x], line[seed], s=7, alpha=0.6, linewidth=0, **look)  # type: ignore[arg-type]


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
            texts = list(style.write_values(values[setting], style.write_rate).values())
        case _:
            texts = list(style.write_values(values[setting]).values())
    style.value_axis(axes, "y", list(values[setting]), texts, labels=3)
    axes.tick_params(axis="y", labelsize=style.look().small)


def plot_bounds(
    axes: Axes, lines: Iterable[tuple[str, pd.DataFrame]], x: str, lower_edge: float
) -> None:
    """Draw lines through ``best_bound``, each with bars from ``smallest`` to ``largest``.

    Args:
        axes: where to draw.
        lines: colour and points of each line.
        x: the column along the horizontal axis.
        lower_edge: of the axis; see `lower_edge`.
    """
    lines = list(lines)
    for place, (colour, points) in enumerate(lines):
        drawn = points[["best_bound", "smallest", "largest"]].clip(lower=lower_edge)
        middle = drawn["best_bound"]
        with style.aside(axes, right=_BARS_APART * (place - (len(lines) - 1) / 2)):
            axes.errorbar(
                points[x], middle, yerr=(middle - drawn["smallest"], drawn["largest"] - middle),
                color=colour, elinewidth=0.8, linewidth=1.1, marker="o", markersize=3,
            )  # fmt: skip
    axes.set_yscale("log")


def lower_edge(points: pd.DataFrame) -> float:
    """Return half of the smallest ``best_bound`` above 0."""
    bounds = points.loc[points["best_bound"] > 0, "best_bound"]
    return float(bounds.min()) / 2 if len(bounds) else 0.1


def end_at(axes: Axes, points: pd.DataFrame, lower_edge: float) -> bool:
    """End the axis at its lower edge if any range goes below it, and return whether one does."""
    below = bool((points[["best_bound", "smallest"]] < lower_edge).any(axis=None))
    if below:
        axes.set_ylim(bottom=lower_edge)
    style.log_axis(axes, "y")
    return below
