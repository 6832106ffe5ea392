"""The trials that a report is about."""

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
from pyarrow import ArrowException

from dpsweep.analysis.frames import UnreadableResultsError
from dpsweep.study import Study
from dpsweep.study.paths import Paths

COLUMNS = [
    "epsilon", "delta", "epochs", "batch_size", "clipping_bound", "passes",
    "learning_rate", "seed", "best", "certified_epsilon", "accuracy", "macro_accuracy",
    "selection_accuracy", "diverged", "nonfinite_examples", "wall_seconds", "device",
    "precision", "versions", "trial_key",
]  # fmt: skip


def read_trials(study: Study, paths: Paths, columns: Sequence[str] = COLUMNS) -> pd.DataFrame:
    """Every trial of the study's cells that exists so far, with ``problem`` and ``cell`` (the cell's name).

    A problem is read from its table, and from its cells where that is not there yet.

    Returns:
        One row per trial, in the order of the study's problems; ``columns``, ``problem`` and ``cell``.

    Raises:
        UnreadableResultsError: a file is damaged or lacks a column.
    """
    frames = [
        frame for name in study.problems for frame in _read_problem(study, paths, name, columns)
    ]
    filled = [frame for frame in frames if len(frame)]
    if not filled:
        return pd.DataFrame(columns=[*columns, "problem", "cell"])
    return pd.concat(filled, ignore_index=True)


def _read_problem(
    study: Study, paths: Paths, problem: str, columns: Sequence[str]
) -> Iterator[pd.DataFrame]:
    for file in _files(study, paths, problem):
        if file == paths.problem(problem):
            trials = _read(file, [*columns, "problem", "cell"])
            yield trials[trials["cell"].isin([cell.name for cell in study.problem_cells(problem)])]
        else:
            yield _read(file, columns).assign(problem=problem, cell=file.parent.name)


def _files(study: Study, paths: Paths, problem: str) -> list[Path]:
    """The table of a problem, or what there is of its cells."""
    if paths.problem(problem).exists():
        return [paths.problem(problem)]
    cells = (paths.cell(cell) / "trials.parquet" for cell in study.problem_cells(problem))
    return [file for file in cells if file.exists()]


def _read(file: Path, columns: Sequence[str]) -> pd.DataFrame:
    try:
        return pd.read_parquet(file, columns=list(columns))
    except (OSError, ArrowException) as error:
        raise UnreadableResultsError(
            f"{file}: cannot be read ({error}); make it again (stored trials are not trained twice)",
            (file,),
        ) from error


def is_private(trials: pd.DataFrame) -> pd.Series:
    """True for the trials that train under a finite epsilon."""
    return trials["epsilon"].astype(float) < math.inf


def newest_results(study: Study, paths: Paths) -> datetime | None:
    """When the newest file of `read_trials` was written (UTC), or None where there is none."""
    files = [file for name in study.problems for file in _files(study, paths, name)]
    times = [file.stat().st_mtime for file in files]
    return datetime.fromtimestamp(max(times), UTC) if times else None
