"""Drawing of figures, and what they share: theme, sizes, colours, formats of values, axes, legends, notes."""

import io
import math
import textwrap
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, findSystemFonts, fontManager
from matplotlib.ft2font import FT2Font
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter
from matplotlib.transforms import ScaledTranslation

from dpsweep.analysis import frames
from dpsweep.base.errors import DpsweepError
from dpsweep.base.files import atomic_path
from dpsweep.base.formatting import count, one_line
from dpsweep.base.lazy import sns
from dpsweep.study import Paths, Study, targets
from dpsweep.study.file import Style
from dpsweep.study.fingerprints import target_fingerprint, write_settings
from dpsweep.study.messages import pick

_LOOK: ContextVar[Style] = ContextVar("look", default=Style())  # noqa: B039 (it is frozen)
FONT = "DejaVu Sans"
"""The first font of the figures. It ships with matplotlib, so every machine draws the same glyphs."""
BEST = "#D1001C"
GREY = "#555555"
MARKERS = ["o", "s", "^", "D", "v", "P", "X"]

_SIZES = {
    **dict.fromkeys(("font.size", "axes.titlesize", "axes.labelsize"), 8),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize"), 7),
    **dict.fromkeys(("legend.fontsize", "legend.title_fontsize"), 7),
}
_RC: Any = {
    "mathtext.fontset": "dejavusans",
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.edgecolor": "black",
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.4,
    "lines.markersize": 3.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.5,
    "ytick.minor.width": 0.5,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.minor.size": 1.5,
    "ytick.minor.size": 1.5,
    "pdf.fonttype": 42,
    "figure.dpi": 100,
    "savefig.dpi": 300,
}


def look() -> Style:
    """Return the current colours and sizes."""
    return _LOOK.get()


@contextmanager
def style(chosen: Style | None = None) -> Iterator[None]:
    """Draw in the project's style inside the context, independent of the user's matplotlib settings.

    Args:
        chosen: the colours and sizes of a study, by default the project's.
    """
    with mpl.rc_context():
        mpl.rcdefaults()
        chosen = chosen or Style()
        sizes = {name: chosen.points(size) for name, size in _SIZES.items()}
        fonts = {"font.family": font_family()}
        sns.set_theme(context="paper", style="ticks", palette="colorblind", rc=_RC | fonts | sizes)
        before = _LOOK.set(chosen)
        try:
            yield
        finally:
            _LOOK.reset(before)


def panels_figure(count: int, height: float) -> Figure:
    """Make an empty figure for ``count`` panels side by side; for one panel, it is narrower than the page."""
    width = look().page_width * (1 if count > 1 else 0.6)
    return Figure(figsize=(width, height), layout="constrained")


def panels(
    numbers: pd.DataFrame, height: float, rows: int = 1, *, wide: bool = False, **grid: Any
) -> tuple[Figure, list[tuple[Any, pd.DataFrame]]]:
    """Make a figure with a column of axes for each ``panel``, side by side.

    Args:
        numbers: rows with a column ``panel``.
        height: inches.
        rows: number of axes below each other.
        wide: whether a single panel is as wide as the page too.
        grid: ``sharex``, ``sharey`` and ``height_ratios`` of `matplotlib.figure.Figure.subplots`.

    Returns:
        The figure, and the axes (an array from top to bottom) and rows of each panel, from left to
        right.
    """
    found = [panel for _, panel in numbers.groupby("panel")]
    drawing = panels_figure(len(found) + wide, height)
    axes = drawing.subplots(rows, len(found), squeeze=False, **grid)
    return drawing, list(zip(axes.T, found, strict=True))


def empty_figure() -> Figure:
    """Make the placeholder of a figure without any result yet."""
    figure = panels_figure(1, height=1.0)
    figure.text(0.5, 0.6, "no results yet", ha="center", va="center", color=GREY)
    return figure


def save(figure: Figure, pdf: Path, png: Path) -> None:
    """Write a figure as PDF and PNG, atomically; the same drawing gives the same bytes.

    Raises:
        UnwritableTextError: no font of the figures has some character of a text.
    """
    require_fonts(each.get_text() for each in figure.findobj(Text) if isinstance(each, Text))
    for path, metadata in ((pdf, {"CreationDate": None}), (png, {"Software": None})):
        # In memory first: both writers have errors of their own for a full disk.
        buffer = io.BytesIO()
        figure.savefig(buffer, format=path.suffix[1:], metadata=metadata)
        with atomic_path(path) as partial:
            partial.write_bytes(buffer.getvalue())


# -- figures of a study, and of any frame --------------------------------------------------


def draw(study: Study, paths: Paths, target: str) -> None:
    """Write a figure's numbers as ``<target>.csv`` and, drawn from them alone, as ``.pdf`` and ``.png``.

    With partial paths, absent results are left out, and a note in the figure counts them.

    Raises:
        DpsweepError: the study has no such figure.
        MissingResultsError: results are absent (and the paths are not partial).
    """
    figure = pick("figure", target, study.figures)
    missing: list[Path] | None = [] if paths.partial else None
    numbers = figure.compute(study, paths, missing)
    with style(study.style):
        drawing = plot(figure, numbers) if len(numbers) else empty_figure()
        say_missing(drawing, len(set(missing or ())))
        save(drawing, paths.figure(target, "pdf"), paths.figure(target, "png"))
    frames.write_numbers(numbers, paths.figure(target, "csv"))
    write_settings(paths.figure(target, "csv"), target_fingerprint(study, figure))


_OPTIONAL: dict[str, Any] = {
    **{"panel": 0, "title": "", "clipping": "flat", "full_batch": False, "label": "all"},
    **{"repeats": 1, "records": 1, "running_mean_over": 1, "difficulty": None, "as_good": False},
    **dict.fromkeys(("batch_size", "learning_rate", "clipping_bound"), math.nan),
    **dict.fromkeys(("minimum", "maximum", "smallest", "largest"), math.nan),
    **dict.fromkeys(("as_good_smallest", "as_good_largest", "mean_lost_upper"), math.nan),
    **dict.fromkeys(("rank_correlation", "rank_correlation_lower"), math.nan),
    "rank_correlation_upper": math.nan,
}
"""Columns that a frame for `draw_frame` may lack, with their values then."""


def draw_frame(figure: targets.Figure, frame: pd.DataFrame, look: Style | None) -> Figure:
    """Draw any frame as a figure; see `Figure.draw`.

    Args:
        figure: the options of its class.
        frame: the rows, in any order.
        look: colours and sizes.

    Raises:
        ValueError: the frame cannot be drawn.
    """
    keys, others = figure.columns()
    needed = list(dict.fromkeys([*keys, *others]))
    lacking = [column for column in needed if column not in frame]
    if lacking or frame.empty:
        found = f"no column {', '.join(lacking)}" if lacking else "no row"
        raise ValueError(f"the frame has {found}; {figure.family} needs {', '.join(needed)}")
    given = frames.plain(frame, [*needed, *_OPTIONAL, "line"])
    absent = {name: value for name, value in _OPTIONAL.items() if name not in given}
    full = given.assign(**absent)
    if "line" not in full:
        full["line"] = full["label"].factorize()[0]
    if keys:
        full = frames.in_order(full, ["panel", "line", "records", *keys])
    with style(look):
        return plot(figure, full)


def plot(figure: targets.Figure, numbers: pd.DataFrame) -> Figure:
    """Draw a figure's numbers, with the user's texts escaped."""
    shown = numbers.copy()
    for name in numbers:
        if pd.api.types.is_string_dtype(numbers[name]):
            shown[name] = numbers[name].map(literal, na_action="ignore")
    drawing = figure.plot(shown)
    _wrap_titles(drawing)
    return drawing


def _wrap_titles(drawing: Figure) -> None:
    """Break titles that are wider than their panels; the figure grows by these lines."""
    added = Counter[int]()
    for axes in drawing.axes:
        text, spec = axes.get_title(), axes.get_subplotspec()
        # With the space between panels; a character is as wide as 0.56 of the size, twice that in Chinese.
        across = 72 * 1.25 * axes.get_position().width * drawing.get_figwidth()
        across /= 0.56 * float(axes.title.get_fontsize())
        wide = sum(unicodedata.east_asian_width(each) in "WF" for each in text)
        across *= len(text) / (len(text) + wide) if text else 1
        whole = text.replace(" = ", "\xa0=\xa0")  # "ε = 8" stays on one line
        lines = (textwrap.fill(line, max(int(across), 8)) for line in whole.splitlines())
        wrapped = "\n".join(lines).replace("\xa0", " ")
        axes.title.set_text(wrapped)
        row = spec.rowspan.start if spec else 0
        added[row] = max(added[row], wrapped.count("\n") - text.count("\n"))
    line = 1.2 * mpl.rcParams["axes.titlesize"] / 72
    drawing.set_figheight(drawing.get_figheight() + line * added.total())


# -- colours -------------------------------------------------------------------------------


def ordered_colours(count: int) -> list[str]:
    """Return colours for values in ascending order: dark to bright, without the palest yellow."""
    if count == 1:
        return [look().easy]
    return list(sns.color_palette(look().colour_map, count).as_hex())


def colours_by(values: "pd.Series[Any]") -> dict[Any, str]:
    """Return a colour for every distinct value, in ascending order (`ordered_colours`)."""
    distinct = sorted(values.unique())
    return dict(zip(distinct, ordered_colours(len(distinct)), strict=True))


def line_colours(difficulties: Sequence[str | None]) -> list[str]:
    """Return blue for easy and orange for hard lines, or an ordered palette if no line has a difficulty."""
    if all(each is None for each in difficulties):
        return ordered_colours(len(difficulties))
    return [look().difficulty[each] if each else "#000000" for each in difficulties]


def category_colours(count: int) -> list[str]:
    """Return colours for unordered categories, without the easy blue and the hard orange.

    Raises:
        ValueError: more than four, which readers cannot tell apart.
    """
    categories = look().palette[3:]
    if count > len(categories):
        raise ValueError(
            f"at most {len(categories)} lines can have different colours, found {count}"
        )
    return categories[:count]


# -- formats of values ---------------------------------------------------------------------


def literal(text: str) -> str:
    r"""Escape a user's text for matplotlib.

    An unescaped dollar begins mathematics, and a legend omits labels that begin with an underscore.

    >>> literal("$5 and $6"), literal("_hidden") == "_hidden"
    ('\\$5 and \\$6', False)
    """
    shown = one_line(text).replace("$", r"\$")
    return f"\N{ZERO WIDTH SPACE}{shown}" if shown.startswith("_") else shown


def write_value(value: float, more: int = 0) -> str:
    """Write a grid value for a label: 10, 0.25, a power of 10 if that is shorter, or ∞.

    Args:
        value: the value.
        more: digits beyond the usual number.
    """
    value = float(value)  # a float32 has few digits, but other digits than its float64
    if math.isinf(value):
        return "∞"
    if value != 0 and (abs(value) < 1e-2 or abs(value) >= 1e5):
        text = np.format_float_scientific(value, precision=2 + more, trim="-")
        factor, exponent = text.replace(".e", "e").split("e")
        power = rf"10^{{{int(exponent)}}}"
        return f"${power}$" if factor == "1" else rf"${factor}{{\cdot}}{power}$"
    text = np.format_float_positional(value, precision=6 + more, fractional=False, trim="-")
    return text.removesuffix(".")


def write_rate(rate: float, more: int = 0) -> str:
    """Write a learning rate for a label, with two digits; the CSV has all digits."""
    return f"{rate:.{2 + more}g}"


def write_values(
    values: Iterable[float], write: Callable[[float, int], str] = write_value
) -> dict[float, str]:
    """Write distinct values for labels, with as many digits as tell them apart.

    >>> write_values([10.0, 0.3, 0.1 + 0.2])
    {10.0: '10', 0.3: '0.3', 0.30000000000000004: '0.30000000000000004'}

    Args:
        values: the values; NaN is left out.
        write: writes one value with some digits more than usual.
    """
    distinct = [value for value in dict.fromkeys(values) if not math.isnan(value)]
    texts = list[str]()
    for more in range(17):
        texts = [write(value, more) for value in distinct]
        if len(set(texts)) == len(texts):
            break
    return dict(zip(distinct, texts, strict=True))


def write_epsilons(epsilons: Iterable[float]) -> dict[float, str]:
    """Write distinct privacy budgets for legends or titles."""
    return {value: f"ε = {text}" for value, text in write_values(epsilons).items()}


def write_batch_size(batch_size: int, full_batch: bool, power: bool = False) -> str:
    """Write a batch size for a label: Full, or the number (with ``power``, as a power of 2 if it is one)."""
    if full_batch:
        return "Full"
    if power and batch_size & (batch_size - 1) == 0:
        return rf"$2^{{{batch_size.bit_length() - 1}}}$"
    return str(batch_size)


def write_percentage(share: float) -> str:
    """Write a share in whole per cent; 0 % stands for exactly none, and 100 % for exactly all."""
    if 0 < share < 0.005:
        return "< 1 %"
    if 0.995 <= share < 1:
        return "> 99 %"
    return f"{100 * share:.0f} %"


def chosen_values(settings: pd.Series) -> dict[str, str]:
    """Write the chosen batch size and learning rate, as far as known, by their symbols."""
    chosen = {}
    if pd.notna(settings["batch_size"]):
        chosen["B"] = write_batch_size(int(settings["batch_size"]), bool(settings["full_batch"]))
    if pd.notna(settings["learning_rate"]):
        chosen["η"] = write_rate(settings["learning_rate"])
    return chosen


def write_chosen(settings: pd.Series) -> str:
    """Write the chosen batch size and learning rate in one line."""
    return ", ".join(f"{symbol} = {value}" for symbol, value in chosen_values(settings).items())


# -- lines ---------------------------------------------------------------------------------


def draw_lines(
    axes: Axes, rows: pd.DataFrame, x: str, y: str, colours: dict[float, str], by: str, **look: Any
) -> None:
    """Draw a line for every value of a column, without axis labels.

    Args:
        axes: where to draw.
        rows: the points.
        x: the column along the horizontal axis.
        y: the column along the vertical axis.
        colours: of the lines, by the values of ``by``.
        by: the column that distinguishes lines.
        look: properties of all lines, as for `seaborn.lineplot`.
    """
    if len(rows):  # seaborn warns about a palette without data
        sns.lineplot(
            rows, x=x, y=y, hue=by, palette=colours, estimator=None, errorbar=None, legend=False,
            ax=axes, **look,
        )  # fmt: skip
    axes.set(xlabel="", ylabel="")


def draw_smoothed(
    axes: Axes,
    rows: pd.DataFrame,
    x: str,
    y: str,
    colours: dict[float, str],
    by: str,
    alpha: float,
    **look: Any,
) -> None:
    """Draw ``y`` or, if there is a running mean ``<y>_smooth``, this one and ``y`` as thin lines.

    Args:
        axes: where to draw.
        rows: the points.
        x: the column along the horizontal axis.
        y: the column along the vertical axis.
        colours: of the lines, by the values of ``by``.
        by: the column that distinguishes lines.
        alpha: opacity of the thin lines.
        look: properties of the thick lines.
    """
    if rows["running_mean_over"].max() > 1:
        draw_lines(axes, rows, x, y, colours, by, alpha=alpha, linewidth=0.4)
    smooth = f"{y}_smooth" if f"{y}_smooth" in rows else y
    draw_lines(axes, rows, x, smooth, colours, by, **look)


def band(axes: Axes, rows: pd.DataFrame, x: str, low: str, high: str, colour: str) -> None:
    """Shade the area between two columns.

    Args:
        axes: where to draw.
        rows: the points.
        x: the column along the horizontal axis.
        low: the column of the lower edge.
        high: the column of the upper edge.
        colour: of the shade.
    """
    axes.fill_between(rows[x], rows[low], rows[high], color=colour, alpha=0.2, linewidth=0)


def legend_line(label: str, color: str = "black", **look: Any) -> Line2D:
    """Make a legend entry; ``look`` has further properties of the line."""
    return Line2D([], [], color=color, label=label, **look)


def legend_lines(labels: dict[str, str], **look: Any) -> list[Line2D]:
    """Make legend entries from colours by label; ``look`` has further properties of all lines."""
    return [legend_line(label, colour, **look) for label, colour in labels.items()]


# -- axes ----------------------------------------------------------------------------------

BATCH_SIZE_LABEL = "Batch size B"
CLIPPING_LABEL = "Clipping bound C"
EPSILON_LABEL = "Privacy budget ε"
LABELS = {
    "batch_size": BATCH_SIZE_LABEL,
    "clipping_bound": CLIPPING_LABEL,
    "epsilon": EPSILON_LABEL,
}
DIFFERENT_AXES = "The vertical axes of the panels differ."


def log_label(text: str, panels: int = 1) -> str:
    """Write the label of a logarithmic axis, in two lines if many panels are side by side."""
    return f"{text}{chr(10) if panels > 2 else ' '}(log scale)"


def room_for_labels(panels: int) -> int:
    """Return the number of labels that fit under one of so many panels side by side."""
    return 24 // max(panels, 2)


def value_axis(
    axes: Axes,
    which: Literal["x", "y"],
    values: Sequence[float],
    texts: Sequence[str] | None = None,
    *,
    base: float = 10,
    labels: int = 12,
) -> None:
    """Make an axis logarithmic, with labels at the values of a grid as far as there is room.

    Values without room get a short tick only; the ends and powers of ten get labels first.

    Args:
        axes: where to draw.
        which: the axis.
        values: the grid, in any order.
        texts: the labels of the values, by default those of `write_values`.
        base: of the logarithm; it affects only the ticks of an empty axis.
        labels: the number of labels that fit along the axis.
    """
    written = dict(zip(values, texts, strict=True)) if texts else write_values(values)
    ordered = sorted(written)
    axis = _logarithmic(axes, which, base)
    nearest = 0.8 / max(labels - 1, 1) * math.log(ordered[-1] / ordered[0])
    kept = {ordered[-1], ordered[0]}
    for value in sorted(ordered, key=lambda value: (not math.log10(value).is_integer(), -value)):
        if all(abs(math.log(value / other)) >= nearest for other in kept):
            kept.add(value)
    axis.set_major_locator(FixedLocator(sorted(kept)))
    axis.set_ticklabels([written[value] for value in sorted(kept)])
    axis.set_minor_locator(FixedLocator([value for value in ordered if value not in kept]))
    axis.set_minor_formatter(NullFormatter())


def _logarithmic(axes: Axes, which: Literal["x", "y"], base: float = 10) -> Axis:
    (axes.set_xscale if which == "x" else axes.set_yscale)("log", base=base)
    return axes.xaxis if which == "x" else axes.yaxis


def log_axis(axes: Axes, which: Literal["x", "y"]) -> None:
    """Make an axis of measured values logarithmic, with plain numbers if it spans few decades."""
    axis = _logarithmic(axes, which)
    low, high = sorted(axis.get_view_interval())
    if high / low < 50:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    elif math.floor(math.log10(high)) == math.ceil(math.log10(low)):  # one power of ten
        axis.set_major_locator(LogLocator(subs=(1, 3)))
    if low >= 5e-3 and high < 1e5:
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


@contextmanager
def aside(axes: Axes, *, right: float = 0, up: float = 0) -> Iterator[None]:
    """Shift everything drawn inside the context by some points, so that equal lines are all visible."""
    before, figure = set(axes.get_children()), axes.get_figure(root=True)
    assert figure is not None  # noqa: S101 (for the type checker)
    yield
    shift = ScaledTranslation(right / 72, up / 72, figure.dpi_scale_trans)
    # Shift after drawing, so that the limits of the axes are those of the values.
    for artist in set(axes.get_children()) - before:
        if isinstance(artist, PathCollection):
            artist.set_offset_transform(axes.transData + shift)
        else:
            artist.set_transform(axes.transData + shift)


# -- words around the axes -----------------------------------------------------------------


def label_row(row: Sequence[Axes], text: str) -> None:
    """Write the horizontal label that all panels of a row share, once, under the middle of the row."""
    middle = (len(row) - 1) // 2
    # With an even number of panels, the middle is a little to the right of a panel's edge.
    row[middle].set_xlabel(text, x=0.5 if len(row) % 2 else 1.08)


def title(axes: Axes, text: str, *lines: str) -> None:
    """Write a panel's title, and lines of small grey type below it."""
    lines = tuple(filter(None, lines))
    axes.set_title(text, pad=4 + 1.25 * look().small * len(lines))
    for index, line in enumerate(reversed(lines)):
        axes.annotate(
            line, (0.5, 1.0), (0, 2 + 1.25 * look().small * index), xycoords="axes fraction",
            textcoords="offset points", ha="center", va="bottom", fontsize=look().small,
            color=GREY,
        )  # fmt: skip


def legend_above(axes: Axes, text: str, handles: Sequence[Artist], columns: int = 3) -> None:
    """Write a panel's title, and its legend between the title and the panel, outside of the data.

    Args:
        axes: the panel.
        text: the title.
        handles: the entries of the legend.
        columns: the largest number of columns of the legend.
    """
    columns = min(len(handles), columns)
    rows = -(-len(handles) // columns) if handles else 0
    axes.set_title(text, pad=4 + 10 * rows)
    if handles:
        axes.legend(
            handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=columns,
            borderaxespad=0.1, columnspacing=1.2, handletextpad=0.5, labelspacing=0.2,
        )  # fmt: skip


def legends(
    figure: Figure, panels: Sequence[tuple[Axes, str, Sequence[Artist]]], order: Sequence[str]
) -> None:
    """Write titles and legends: one legend for the figure if panels share lines, otherwise one for each.

    Args:
        figure: the figure.
        panels: axes, title and legend handles of every panel.
        order: the labels of all lines, in the order of the figure's legend.
    """
    every = [handle for _, _, handles in panels for handle in handles]
    known = {handle.get_label(): handle for handle in reversed(every)}
    if len(known) == len(every):
        for axes, text, handles in panels:
            legend_above(axes, text, handles)
        return
    figure.legend(
        handles=[known[label] for label in order],
        loc="outside upper center", ncols=min(len(known), 6),
    )  # fmt: skip
    for axes, text, _ in panels:
        axes.set_title(text)


def note(figure: Figure, text: str, colour: str = GREY) -> None:
    """Add a sentence in small type under the figure."""
    present = figure.get_supxlabel()
    whole = f"{present} {text}" if present else text
    across = int(figure.get_figwidth() * 72 / (0.52 * look().small))
    whole = "\n".join(textwrap.wrap(whole.replace("\n", " "), across))
    figure.supxlabel(whole, fontsize=look().small, color=colour, x=0.01, ha="left")


def say_missing(figure: Figure, missing: int) -> None:
    """Write under the figure how many result files are missing, if any."""
    if missing:
        note(figure, f"Partial: {count(missing, 'result file')} not there yet.", "#B00020")


class UnwritableTextError(DpsweepError):
    """A text with characters that no font of the figures has."""


@lru_cache(maxsize=1)
def font_family() -> list[str]:
    """Return the fonts of the figures; a character is taken from the first one that has it."""
    # matplotlib's cached list lacks fonts that were installed later.
    known = {font.fname for font in fontManager.ttflist}
    for file in set(findSystemFonts()) - known:
        with suppress(OSError, RuntimeError):  # matplotlib cannot read this font
            fontManager.addfont(file)
    names = fontManager.get_font_names()
    return [FONT, *sorted(name for name in names if name.startswith("Noto Sans"))]


@lru_cache(maxsize=1)
def _characters() -> set[str]:
    return {chr(mark) for name in font_family() for mark in FT2Font(findfont(name)).get_charmap()}


def require_fonts(texts: Iterable[str]) -> None:
    """Check that the fonts of the figures have the characters of texts.

    Raises:
        UnwritableTextError: they lack some, which would become boxes.
    """
    lacking = sorted(
        {text for text in texts if not _characters() >= {*filter(str.isprintable, text)}}
    )
    if lacking:
        raise UnwritableTextError(
            f"no font of the figures can write {', '.join(map(repr, lacking))}. Install Noto Sans (on "
            "Debian: apt install fonts-noto-cjk fonts-noto-core), or write these names in other letters"
        )
