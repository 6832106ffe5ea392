"""Trials of the pages."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from dpsweep.analysis.frames import read_all
from dpsweep.analysis.row_checks import COMPARED, current_trials
from dpsweep.study import Study
from dpsweep.study.fingerprints import has_settings, problem_fingerprint
from dpsweep.study.paths import Paths

COLUMNS = [
    "epsilon", "delta", "epochs", "batch_size", "clipping_bound", "passes",
    "learning_rate", "seed", "best", "certified_epsilon", "accuracy", "macro_accuracy",
    "selection_accuracy", "diverged", "nonfinite_examples", "wall_seconds", "device",
    "precision", "versions", "trial_key",
]  # fmt: skip
_KEY = ["problem", "cell"]


def read_trials(study: Study, paths: Paths, columns: Sequence[str] = COLUMNS) -> pd.DataFrame:
    """Read all trials of the study's cells that exist so far.

    A problem is read from its table or, if there is none for the present settings, from its cells.

    Returns:
        One row per trial, in the order of the study's problems, with ``columns``, ``problem`` and ``cell``
        (the cell's name). With units of several rows there is ``unit_accuracy`` too.

    Raises:
        FormerResultsError: trials were made with other data, weights or noise than the present ones; partial
            paths leave them out.
        UnreadableResultsError: a file is damaged or lacks a column.
    """
    frames = [_read_problem(study, paths, name, columns) for name in study.problems]
    filled = [frame for frame in frames if len(frame)]
    if not filled:
        return pd.DataFrame(columns=[*columns, *_KEY])
    return pd.concat(filled, ignore_index=True)


def _read_problem(study: Study, paths: Paths, problem: str, columns: Sequence[str]) -> pd.DataFrame:
    of_units = study.datasets[study.problems[problem].dataset].has_units
    columns = [*columns, *(["unit_accuracy"] if of_units else [])]
    read, files = list(dict.fromkeys([*columns, *COMPARED])), _files(study, paths, problem)
    if files == [paths.problem(problem)]:
        trials = read_all({(): files[0]}, [*read, *_KEY], [], None, "table")
    else:
        cells: dict[tuple[Any, ...], Path] = {(problem, file.parent.name): file for file in files}
        trials = read_all(cells, read, _KEY, None, "trained cell")
    found = current_trials(study, paths, trials, [] if paths.partial else None)
    return found[[*columns, *_KEY]]


def _files(study: Study, paths: Paths, problem: str) -> list[Path]:
    """Return the table of a problem, or the files of its cells that exist."""
    table = paths.problem(problem)
    if table.exists() and has_settings(table, problem_fingerprint(study, problem)):
        return [table]
    cells = (paths.cell_trials(study, cell) for cell in study.problem_cells(problem))
    return [file for file in cells if file.exists()]


def is_private(trials: pd.DataFrame) -> pd.Series:
    """Return True for trials with a finite epsilon."""
    return trials["epsilon"].astype(float) < math.inf


def newest_results(study: Study, paths: Paths) -> datetime | None:
    """Return when the newest file of `read_trials` was written (UTC), or None without files."""
    files = [file for name in study.problems for file in _files(study, paths, name)]
    times = [file.stat().st_mtime for file in files]
    return datetime.fromtimestamp(max(times), UTC) if times else None
