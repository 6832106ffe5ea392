"""One table to its files."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from dpsweep.base.files import atomic_path, write_text
from dpsweep.figures.tables import comparison, inputs, tuning_implications
from dpsweep.figures.tables.text import TextTable
from dpsweep.study import Study
from dpsweep.study.captions import how_chosen
from dpsweep.study.messages import pick
from dpsweep.study.paths import Paths
from dpsweep.study.table_targets import Table


@dataclass(frozen=True)
class Family:
    """The functions that make the tables of a family.

    Attributes:
        compute: from (study, paths, table, missing) to the frame of every CSV, by its suffix;
            ``csv`` is what is printed.
        show: from (table, the printed frame) to text.
        note: from (table, the printed frame) to what the caption says besides, if anything.
        words: from the table to the columns that are text even where they look like numbers.
    """

    compute: Callable[..., dict[str, pd.DataFrame]]
    show: Callable[[Any, pd.DataFrame], TextTable]
    note: Callable[[Any, pd.DataFrame], str] = lambda *_: ""
    words: Callable[[Any], Sequence[str]] = lambda _: ()


FAMILIES = {
    "comparison": Family(
        lambda *inputs: {"csv": comparison.accuracies_and_references(*inputs)},
        comparison.show,
        comparison.which_is_better,
        lambda table: [*table.row_titles, "column"],
    ),
    "datasets": Family(
        lambda study, paths, _, missing: {"csv": inputs.prepared_datasets(study, paths, missing)},
        lambda _, numbers: inputs.show_datasets(numbers),
        words=lambda _: ("revision", "description"),
    ),
    "hyperparameter_grid": Family(
        lambda study, *_: {"csv": inputs.grids_of_sweeps(study)},
        lambda _, numbers: inputs.show_grids(numbers),
        words=lambda _: inputs.LISTS,
    ),
    "tuning_implications": Family(
        tuning_implications.evidence_and_comparisons,
        lambda _, numbers: tuning_implications.show(numbers),
        lambda *_: tuning_implications.NOTE,
    ),
}


def write(study: Study, paths: Paths, target: str) -> None:
    """Write ``<target>.csv`` with full precision, and ``.tex`` and ``.md`` as they are printed.

    The comparisons behind tuning rules are a CSV of their own, ``<target>.comparisons.csv``.

    With partial paths absent results are left out and counted in the caption.

    Raises:
        DpsweepError: the study has no such table.
        MissingResultsError: results are absent (and the paths are not partial).
    """
    table = pick("table", target, study.tables)
    family = FAMILIES[table.family]
    missing: list[Path] | None = [] if paths.partial else None
    frames = family.compute(study, paths, table, missing)
    caption, printed = _printed(study, table, frames["csv"])
    if absent := len(set(missing or ())):
        files = "1 result file is" if absent == 1 else f"{absent} result files are"
        caption += f" Partial: {files} not there yet."
    write_text(paths.table(target, "tex"), printed.latex(caption, f"tab:{target}"))
    write_text(paths.table(target, "md"), printed.markdown(caption))
    for suffix, frame in frames.items():
        with atomic_path(paths.table(target, suffix)) as file:
            frame.to_csv(file, index=False, lineterminator="\n")


def read(study: Study, paths: Paths, target: str) -> tuple[str, TextTable]:
    """Caption and text of a table, from the CSV that `write` left.

    Raises:
        OSError: the file is missing or cannot be read.
        ValueError: it is not such a table.
    """
    table = study.tables[target]
    words = dict.fromkeys(FAMILIES[table.family].words(table), str)
    numbers = read_numbers(paths.table(target, "csv"), words)
    try:
        return _printed(study, table, numbers)
    except KeyError as error:
        raise ValueError(f"it has no column {error}") from error


def read_numbers(file: Path, words: dict[str, type[str]] | None = None) -> pd.DataFrame:
    """A CSV of ours as a frame; only an empty field is an absent value, and one of text is empty.

    Args:
        file: the CSV.
        words: columns that are text even where they look like numbers.
    """
    numbers = pd.read_csv(file, dtype=words, keep_default_na=False, na_values=[""])
    text = numbers.select_dtypes(["object", "string"]).columns
    numbers[text] = numbers[text].fillna("")
    return numbers


def _printed(study: Study, table: Table, numbers: pd.DataFrame) -> tuple[str, TextTable]:
    family = FAMILIES[table.family]
    notes = [table.caption, how_chosen(study, table), family.note(table, numbers)]
    return " ".join(note for note in notes if note), family.show(table, numbers)
