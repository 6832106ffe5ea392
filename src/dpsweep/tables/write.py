"""One table to its files."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from dpsweep.base.files import atomic_path, write_text
from dpsweep.base.units import count
from dpsweep.config.messages import pick
from dpsweep.study import Study
from dpsweep.study.captions import how_chosen
from dpsweep.study.paths import Paths
from dpsweep.study.table_targets import PrintedTable
from dpsweep.tables import comparison, inputs, optimizers, tuning_implications
from dpsweep.tables.text import TextTable


@dataclass(frozen=True)
class Family:
    """The functions that make the tables of a family.

    Attributes:
        compute: from (study, paths, table, missing) to the frame of the CSV, or to the frame of every
            CSV by its suffix, of which ``csv`` is what is printed.
        show: from (table, the printed frame) to text.
        words: columns that are text even where they look like numbers; titles of rows always are.
    """

    compute: Callable[..., pd.DataFrame | dict[str, pd.DataFrame]]
    show: Callable[[Any, pd.DataFrame], TextTable]
    words: Sequence[str] = ()


FAMILIES = {
    "comparison": Family(comparison.accuracies_and_references, comparison.show, ["column"]),
    "datasets": Family(
        lambda study, paths, _, missing: inputs.prepared_datasets(study, paths, missing),
        inputs.show_datasets,
        ["revision", "description"],
    ),
    "hyperparameter_grid": Family(inputs.grids_of_sweeps, inputs.show_grids, inputs.LISTS),
    "optimizers": Family(
        optimizers.gains_and_settings, optimizers.show, ["optimizer", "title", "baseline"]
    ),
    "tuning_implications": Family(
        tuning_implications.evidence_and_comparisons, tuning_implications.show
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
    computed = family.compute(study, paths, table, missing)
    frames = computed if isinstance(computed, dict) else {"csv": computed}
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
    """Write a table as it is printed.

    Args:
        file: the path of the table's file with a suffix, ``tex`` or ``md``.
        printed: the table.
        caption: its caption.
        label: its name, for LaTeX.
    """
    write_text(file("tex"), printed.latex(caption, f"tab:{label}"))
    write_text(file("md"), printed.markdown(caption))


def write_numbers(numbers: pd.DataFrame, file: Path) -> None:
    """Write a frame as a CSV with full precision, atomically."""
    with atomic_path(file) as partial_file:
        numbers.to_csv(partial_file, index=False, lineterminator="\n")


def read(study: Study, paths: Paths, target: str) -> tuple[str, TextTable]:
    """Caption and text of a table, from the CSV that `write` left.

    Raises:
        OSError: the file is missing or cannot be read.
        ValueError: it is not such a table.
    """
    table = study.tables[target]
    words = [*FAMILIES[table.family].words, *getattr(table, "row_titles", ())]
    numbers = read_numbers(paths.table(target, "csv"), dict.fromkeys(words, str))
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


def _printed(study: Study, table: PrintedTable, numbers: pd.DataFrame) -> tuple[str, TextTable]:
    printed = FAMILIES[table.family].show(table, numbers)
    notes = [table.caption, *how_chosen(study, table), printed.note]
    return " ".join(note for note in notes if note), printed
