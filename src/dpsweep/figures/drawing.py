"""Drawing of a study's figure to its three files, and of any frame in a notebook."""

from pathlib import Path
from typing import Any

import matplotlib.figure
import pandas as pd

from dpsweep.analysis.frames import in_order, plain
from dpsweep.figures import style
from dpsweep.study import Study
from dpsweep.study.file import Style
from dpsweep.study.messages import pick
from dpsweep.study.paths import Paths
from dpsweep.study.targets import Figure
from dpsweep.tables.text import write_numbers


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
    with style.style(study.style):
        drawing = plot(figure, numbers) if len(numbers) else style.empty_figure()
        style.say_missing(drawing, len(set(missing or ())))
        style.save(drawing, paths.figure(target, "pdf"), paths.figure(target, "png"))
    write_numbers(numbers, paths.figure(target, "csv"))


_PANEL: dict[str, Any] = {"panel": 0, "title": "", "clipping": "flat", "full_batch": False}


def draw_frame(figure: Figure, frame: pd.DataFrame, look: Style | None) -> matplotlib.figure.Figure:
    """Draw any frame as a figure; see `Figure.draw`.

    Args:
        figure: the options of its class.
        frame: the rows, in any order.
        look: colours and sizes.

    Raises:
        ValueError: the frame cannot be drawn.
    """
    columns = figure.columns()
    keys, absent = columns.keys.split(), {**_PANEL, **columns.absent}
    needed = [*keys, *columns.values.split()]
    lacking = [column for column in needed if column not in frame]
    if lacking or frame.empty:
        found = f"no column {', '.join(lacking)}" if lacking else "no row"
        raise ValueError(f"the frame has {found}; {figure.family} needs {', '.join(needed)}")
    full = plain(frame, [*needed, *absent])
    for column, value in absent.items():
        if column not in full:
            full[column] = value(full) if callable(value) else value
    if keys:
        within = [each for each in ("panel", "line", "records") if each in full]
        full = in_order(full, [*within, *keys])
    with style.style(look):
        return plot(figure.for_frame(full), full)


def plot(figure: Figure, numbers: pd.DataFrame) -> matplotlib.figure.Figure:
    """Draw a figure's numbers, with the user's texts escaped."""
    shown = numbers.copy()
    for name in numbers:
        if pd.api.types.is_string_dtype(numbers[name]):
            shown[name] = numbers[name].map(style.literal, na_action="ignore")
    drawing = style.literal_titles(figure).plot(shown)
    if not isinstance(drawing, matplotlib.figure.Figure):
        raise TypeError(f"{type(figure).__name__}.plot: found {drawing!r}; allowed: a figure")
    return drawing
