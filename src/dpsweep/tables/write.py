"""One table to its three files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from dpsweep.files import atomic_path, write_text
from dpsweep.study import Study, StudyError
from dpsweep.study.paths import Paths
from dpsweep.tables import comparison, datasets, hyperparameter_grid, tuning_implications
from dpsweep.tables.text import TextTable

FAMILIES: dict[
    str, tuple[Callable[..., pd.DataFrame], Callable[[Any, pd.DataFrame], TextTable]]
] = {
    "comparison": (comparison.accuracies_and_references, comparison.show),
    "datasets": (
        lambda study, paths, _, missing: datasets.prepared_datasets(study, paths, missing),
        lambda _, numbers: datasets.show(numbers),
    ),
    "hyperparameter_grid": (
        lambda study, *_: hyperparameter_grid.grids_of_sweeps(study),
        lambda _, numbers: hyperparameter_grid.show(numbers),
    ),
    "tuning_implications": (
        tuning_implications.evidence_for_rules,
        lambda _, numbers: tuning_implications.show(numbers),
    ),
}
"""For every family what computes its numbers, and what writes them as text."""


def write(study: Study, paths: Paths, target: str) -> None:
    """Write ``<target>.csv`` with full precision, and ``.tex`` and ``.md`` as they are printed.

    With partial paths absent results are left out and counted in the caption.

    Raises:
        StudyError: the study has no such table.
        MissingResultsError: results are absent (and the paths are not partial).
    """
    if target not in study.tables:
        allowed = ", ".join(study.tables) or "none"
        raise StudyError(f"no table is called {target!r}; allowed: {allowed}")
    table = study.tables[target]
    compute, show = FAMILIES[table.family]
    missing: list[Path] | None = [] if paths.partial else None
    numbers = compute(study, paths, table, missing)
    printed = show(table, numbers)
    caption = table.caption
    if absent := len(set(missing or ())):
        files = "1 result file is" if absent == 1 else f"{absent} result files are"
        caption += f" Partial: {files} not there yet."
    write_text(paths.table(target, "tex"), printed.latex(caption, f"tab:{target}"))
    write_text(paths.table(target, "md"), printed.markdown(caption))
    with atomic_path(paths.table(target, "csv")) as file:
        numbers.to_csv(file, index=False, lineterminator="\n")
