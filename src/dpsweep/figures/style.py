"""The one look of all figures: sizes, fonts, colours, and how grid values are written."""

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from dpsweep.errors import DpsweepError
from dpsweep.figures.fonts import FONT, write_all
from dpsweep.files import atomic_path

TEXT_WIDTH = 5.5  # inches: the paper's line

# Okabe and Ito's colours, told apart by every common colour vision.
EASY, MEDIUM, HARD = "#0072B2", "#7A7A7A", "#D55E00"
DIFFICULTY = {"easy": EASY, "medium": MEDIUM, "hard": HARD}
_CATEGORIES = ["#009E73", "#CC79A7", "#56B4E9", "#000000"]
SEQUENTIAL = "viridis"
BEST = "#D1001C"
MARKERS = ["o", "s", "^", "D", "v", "P", "X"]

_RC: Any = {
    "font.family": [FONT],
    "mathtext.fontset": "dejavusans",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.title_fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.4,
    "lines.markersize": 3.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "pdf.fonttype": 42,
    "figure.dpi": 100,
    "savefig.dpi": 300,
    "axes.unicode_minus": True,
}


class MissingFontError(DpsweepError):
    """The font of the figures is not installed."""


@contextmanager
def style() -> Iterator[None]:
    """Draw in the project's style, whatever the user's matplotlib settings are.

    Raises:
        MissingFontError: matplotlib's own font is not there.
    """
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_RC)
        try:
            findfont(FontProperties(family=FONT), fallback_to_default=False)
        except ValueError:
            raise MissingFontError(
                f"the font {FONT!r} was not found; it ships with matplotlib: reinstall matplotlib, "
                "and delete its font cache (matplotlib.get_cachedir()) if that does not help"
            ) from None
        yield


def panels_figure(count: int, height: float, rows: int = 1) -> Figure:
    """An empty figure for ``count`` panels side by side: one panel does not take the whole line."""
    width = TEXT_WIDTH if count > 1 else 3.3
    return Figure(figsize=(width, rows * height), layout="constrained")


def empty_figure() -> Figure:
    """What stands in for a figure of which no result is there yet."""
    figure = panels_figure(1, height=1.0)
    figure.text(0.5, 0.6, "no results yet", ha="center", va="center", color="#777777")
    return figure


def save(figure: Figure, pdf: Path, png: Path) -> None:
    """Write a figure as PDF and PNG, atomically; the same drawing gives the same bytes.

    Raises:
        UnwritableTextError: no installed font has the characters of a text.
    """
    write_all(figure)
    with atomic_path(pdf) as partial:
        figure.savefig(partial, format="pdf", metadata={"CreationDate": None})
    with atomic_path(png) as partial:
        # Through memory: a PNG's writer may seek, a full disk should fail in one place.
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", metadata={"Software": None})
        partial.write_bytes(buffer.getvalue())


# -- colours -------------------------------------------------------------------------------


def ordered_colours(count: int) -> list[str]:
    """Colours for values in ascending order: dark to bright, without the palest yellow."""
    if count == 1:
        return [EASY]
    palette = mpl.colormaps[SEQUENTIAL]
    return [to_hex(palette(position)) for position in np.linspace(0.0, 0.88, count)]


def line_colours(difficulties: Sequence[str | None]) -> list[str]:
    """Blue for easy and orange for hard where lines say so; otherwise an ordered palette."""
    if all(each is None for each in difficulties):
        return ordered_colours(len(difficulties))
    return [DIFFICULTY[each] if each else "#000000" for each in difficulties]


def category_colours(count: int) -> list[str]:
    """Colours for unordered things, none of them the easy blue or the hard orange.

    Raises:
        ValueError: more than four: nobody can tell so many lines apart.
    """
    if count > len(_CATEGORIES):
        raise ValueError(f"at most {len(_CATEGORIES)} lines can be told apart, found {count}")
    return _CATEGORIES[:count]


# -- how values are written ----------------------------------------------------------------


def write_value(value: float) -> str:
    """A grid value for a label: 10, 0.25, 10 to a power where that is shorter, infinity."""
    if math.isinf(value):
        return "∞"
    if value != 0 and (abs(value) < 1e-2 or abs(value) >= 1e5):
        exponent = math.floor(math.log10(abs(value)) + 1e-9)
        factor = value / 10**exponent
        if math.isclose(factor, 1.0):
            return rf"$10^{{{exponent}}}$"
        return rf"${factor:.3g}{{\cdot}}10^{{{exponent}}}$"
    return f"{value:g}"


def write_clipping(bound: float, kind: str) -> str:
    """A clipping bound for a label; automatic and no clipping have names instead of numbers."""
    if kind == "automatic":
        return "AUTO-S"
    return "none" if kind == "none" else write_value(bound)


def write_batch_size(batch_size: int, full_batch: bool, power: bool = False) -> str:
    """A batch size for a label: Full, or the number (``power``: as a power of two if it is one)."""
    if full_batch:
        return "Full"
    if power and batch_size & (batch_size - 1) == 0:
        return rf"$2^{{{batch_size.bit_length() - 1}}}$"
    return str(batch_size)


# -- axes ----------------------------------------------------------------------------------

BATCH_SIZE_LABEL = "Batch size B"
CLIPPING_LABEL = "Clipping bound C"
EPSILON_LABEL = "Privacy budget ε"


def batch_size_axis(
    axes: Axes, which: Literal["x", "y"], sizes: dict[int, bool], labels: int = 12
) -> None:
    """A logarithmic axis (base 2) with a tick at every batch size and Full at N.

    Args:
        axes: where to draw.
        which: the axis.
        sizes: batch size -> whether it is the full batch.
        labels: how many labels there is room for; the others keep their tick.
    """
    ordered = sorted(sizes)
    powers = [size for size in ordered if not sizes[size]]
    every = -(-len(powers) // labels)
    labelled = set(powers[::every])
    texts = []
    for index, size in enumerate(ordered):
        text = write_batch_size(size, sizes[size], power=True) if size in labelled else ""
        if sizes[size]:
            # N lies anywhere, often close to the largest power: write a line lower then.
            close = which == "x" and index and size < 4 * ordered[index - 1]
            text = "\nFull" if close else "Full"
        texts.append(text)
    if which == "x":
        axes.set_xscale("log", base=2)
        axes.set_xticks(ordered, texts)
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.set_yscale("log", base=2)
        axes.set_yticks(ordered, texts)
        axes.yaxis.set_minor_locator(NullLocator())


def value_axis(axes: Axes, which: Literal["x", "y"], values: Sequence[float], base: float) -> None:
    """A logarithmic axis for a geometric grid, labelled at the grid's values while they fit.

    Values that crowd (less than a twelfth of the axis apart) keep a short tick and lose their
    label, smaller values first.
    """
    ordered = sorted(set(values))
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log", base=base)
    span = math.log(ordered[-1] / ordered[0]) or 1.0
    kept: list[float] = []
    for value in reversed(ordered):
        if not kept or math.log(kept[-1] / value) >= span / 12:
            kept.append(value)
    labelled = kept[::-1]
    axis.set_major_locator(FixedLocator(labelled))
    axis.set_ticklabels([write_value(value) for value in labelled])
    axis.set_minor_locator(FixedLocator([value for value in ordered if value not in labelled]))
    axis.set_minor_formatter(NullFormatter())


def log_axis(axes: Axes, which: Literal["x", "y"]) -> None:
    """A logarithmic axis for measured values, with plain numbers where it spans few decades."""
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = sorted(axis.get_view_interval())
    if high / low < 50:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    if low >= 5e-3 and high < 1e5:
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def legend(axes: Axes, entries: int) -> None:
    """Inside the axes where there is room for it, beside them when there are many lines."""
    if entries > 3:
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    else:
        axes.legend(loc="best")


def say_missing(figure: Figure, missing: int) -> None:
    """Say under the figure that some of its results are not there yet."""
    if not missing:
        return
    if figure.get_layout_engine() is None:
        _add_below(figure, 0.2)
    figure.supxlabel(
        f"partial: {missing} result file{'s' if missing > 1 else ''} not there yet",
        fontsize=6.5, color="#B00020", x=0.99, ha="right",
    )  # fmt: skip


def _add_below(figure: Figure, inches: float) -> None:
    """Make a figure whose axes were placed by hand taller at the bottom."""
    width, height = figure.get_size_inches()
    taller = height + inches
    for axes in figure.axes:
        box = axes.get_position()
        axes.set_position(
            (box.x0, (box.y0 * height + inches) / taller, box.width, box.height * height / taller)
        )
    figure.set_size_inches(width, taller)
