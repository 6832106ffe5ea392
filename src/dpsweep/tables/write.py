"""One table to its files."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from dpsweep.files import atomic_path, write_text
from dpsweep.study import Study, StudyError
from dpsweep.study.paths import Paths
from dpsweep.study.wording import how_chosen
from dpsweep.tables import comparison, datasets, hyperparameter_grid, tuning_implications
from dpsweep.tables.text import TextTable


@dataclass(frozen=True)
class Family:
    """How the tables of a family are made.

    Attributes:
        compute: from (study, paths, table, missing) to the frame of every CSV, by its suffix;
            ``csv`` is what is printed.
        show: from (table, the printed frame) to text.
        note: from (table, the printed frame) to what the caption says besides, if anything.
    """

    compute: Callable[..., dict[str, pd.DataFrame]]
    show: Callable[[Any, pd.DataFrame], TextTable]
    note: Callable[[Any, pd.DataFrame], str] = lambda *_: ""


FAMILIES = {
    "comparison": Family(
        lambda *inputs: {"csv": comparison.accuracies_and_references(*inputs)},
        comparison.show,
        comparison.which_is_better,
    ),
    "datasets": Family(
        lambda study, paths, _, missing: {"csv": datasets.prepared_datasets(study, paths, missing)},
        lambda _, numbers: datasets.show(numbers),
    ),
    "hyperparameter_grid": Family(
        lambda study, *_: {"csv": hyperparameter_grid.grids_of_sweeps(study)},
        lambda _, numbers: hyperparameter_grid.show(numbers),
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
        StudyError: the study has no such table.
        MissingResultsError: results are absent (and the paths are not partial).
    """
    if target not in study.tables:
        allowed = ", ".join(study.tables) or "none"
        raise StudyError(f"no table is called {target!r}; allowed: {allowed}")
    table = study.tables[target]
    family = FAMILIES[table.family]
    missing: list[Path] | None = [] if paths.partial else None
    frames = family.compute(study, paths, table, missing)
    printed = family.show(table, frames["csv"])
    notes = [table.caption, how_chosen(study, table), family.note(table, frames["csv"])]
    caption = " ".join(note for note in notes if note)
    if absent := len(set(missing or ())):
        files = "1 result file is" if absent == 1 else f"{absent} result files are"
        caption += f" Partial: {files} not there yet."
    write_text(paths.table(target, "tex"), printed.latex(caption, f"tab:{target}"))
    write_text(paths.table(target, "md"), printed.markdown(caption))
    for suffix, frame in frames.items():
        with atomic_path(paths.table(target, suffix)) as file:
            frame.to_csv(file, index=False, lineterminator="\n")
