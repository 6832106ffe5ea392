"""The writer and the reader of a study's tables."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dpsweep.base.files import atomic_path, write_text
from dpsweep.base.lazy import lazy
from dpsweep.base.units import count
from dpsweep.study import Study
from dpsweep.study.captions import how_chosen
from dpsweep.study.messages import pick
from dpsweep.study.paths import Paths
from dpsweep.study.targets import PrintedTable
from dpsweep.tables.text import TextTable

if TYPE_CHECKING:
    import pandas as pd
else:
    pd = lazy("pandas")


def write(study: Study, paths: Paths, target: str) -> None:
    """Write ``<target>.csv`` with full precision, and the printed table as ``.tex`` and ``.md``.

    Comparisons get a separate CSV, ``<target>.comparisons.csv``. With partial paths, absent results are
    left out and counted in the caption.

    Raises:
        DpsweepError: the study has no such table.
        MissingResultsError: results are absent, and the paths are not partial.
    """
    table = pick("table", target, study.tables)
    missing: list[Path] | None = [] if paths.partial else None
    frames = table.frames(study, paths, missing)
    caption, printed = _printed(study, table, frames["csv"])
    if missing:
        files = count(len(set(missing)), "result file is", "result files are")
        caption += f" Partial: {files} not there yet."
    write_printed(partial(paths.table, target), printed, caption, target)
    for suffix, frame in frames.items():
        write_numbers(frame, paths.table(target, suffix))


def write_printed(
    file: Callable[[str], Path], printed: TextTable, caption: str, label: str
) -> None:
    """Write a table as LaTeX and as Markdown.

    Args:
        file: returns the path of the table's file with a suffix, ``tex`` or ``md``.
        printed: the table.
        caption: its caption.
        label: its LaTeX label, without the prefix ``tab:``.
    """
    write_text(file("tex"), printed.latex(caption, f"tab:{label}"))
    write_text(file("md"), printed.markdown(caption))


def write_numbers(numbers: pd.DataFrame, file: Path) -> None:
    """Write a frame as a CSV with full precision, atomically."""
    with atomic_path(file) as partial_file:
        numbers.to_csv(partial_file, index=False, lineterminator="\n")


def read(study: Study, paths: Paths, target: str) -> tuple[str, TextTable]:
    """Return caption and text of a table, read from the CSV of `write`.

    Raises:
        OSError: the file is missing or cannot be read.
        ValueError: the file is not a CSV of this table.
    """
    table = study.tables[target]
    words = dict.fromkeys([*table.words, *table.row_titles], str)
    numbers = read_numbers(paths.table(target, "csv"), words)
    try:
        return _printed(study, table, numbers)
    except KeyError as error:
        raise ValueError(f"it has no column {error}") from error


def read_numbers(file: Path, words: dict[str, type[str]] | None = None) -> pd.DataFrame:
    """Read a CSV of dpsweep: empty fields are NaN in columns of numbers, and '' in columns of text.

    Args:
        file: the CSV.
        words: columns of text that may look like numbers.
    """
    numbers = pd.read_csv(file, dtype=words, keep_default_na=False, na_values=[""])
    text = numbers.select_dtypes(["object", "string"]).columns
    numbers[text] = numbers[text].fillna("")
    return numbers


def _printed(study: Study, table: PrintedTable, numbers: pd.DataFrame) -> tuple[str, TextTable]:
    printed = table.layout(numbers)
    notes = [table.caption, *how_chosen(study, table), printed.note]
    return " ".join(note for note in notes if note), printed
