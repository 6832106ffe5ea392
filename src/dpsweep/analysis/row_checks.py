"""Comparison of trials with the study of today: trials of other data, weights, noise or sources.

File names contain the settings that the files were made for (`dpsweep.study.fingerprints.SettingsHash`).
They do not show that the content of data, weights or noise has changed since: a file of trials may be older
than this change, or restored from a backup. Trials of another trainer version are refused.
Trials of other sources of the trainer are counted: most edits change no result, but that of a clipping rule
does.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
from pyarrow import ArrowException

from dpsweep import TRAINER_VERSION
from dpsweep.base.errors import DpsweepError
from dpsweep.base.files import fingerprint, read_checked_json
from dpsweep.study import Cell, Study
from dpsweep.study.fingerprints import TRAINER, sources
from dpsweep.study.paths import Paths
from dpsweep.study.targets import Missing

MADE_FROM = ["data_checksum", "classes_checksum", "backbone_checksum", "trainer_version"]
"""Columns of ``trials.parquet`` that identify the inputs of a trial."""
COMPARED = ["train_size", "steps", "noise_multiplier", *MADE_FROM]
"""Columns that must agree with the current study and prepared files."""


class FormerResultsError(DpsweepError):
    """Results of other data, weights or noise than the current ones."""


def current_trials(
    study: Study, paths: Paths, trials: pd.DataFrame, missing: Missing = None
) -> pd.DataFrame:
    """Return the trials that were trained for the current data, weights and noise.

    N and T are compared with the study. Sigma and the checksums of data, classes and weights are compared
    with the prepared files that exist.

    Args:
        study: the study.
        paths: its files.
        trials: a row per trial, with ``problem``, ``cell`` (the cell's name) and `COMPARED`.
        missing: the files of outdated trials are added to it, and their rows left out.

    Raises:
        FormerResultsError: a trial is outdated, and ``missing`` is None.
    """
    inputs = cache(lambda problem: dict(_inputs(study, paths, problem)))
    noise = cache(_read)
    differing: dict[Cell, str] = {}
    rows = trials[["problem", "cell", *COMPARED]].drop_duplicates()
    for problem, name, *found in rows.itertuples(index=False, name=None):
        cell, dataset = Cell.parse(problem, name), study.problems[problem].dataset
        steps = study.steps(dataset, cell.epochs, cell.batch_size)
        file = paths.noise(study, dataset, cell.epsilon, cell.epochs, cell.batch_size)
        required = inputs(problem) | {
            "train_size": (study.train_size(dataset), "the study"),
            "steps": (steps, "the study"),
            "noise_multiplier": (noise(file).get("noise_multiplier"), file),
        }
        for column, value in zip(COMPARED, found, strict=True):
            expected, source = required.get(column, (None, ""))
            if expected is not None and value != expected:
                differing.setdefault(cell, f"{column} {value}; {source} has {expected}")
    if not differing:
        return trials
    files = [paths.cell_trials(study, cell) for cell in differing]
    if missing is None:
        count = trials[["problem", "cell"]].drop_duplicates().shape[0]
        raise FormerResultsError(
            f"{len(files)} of {count} cells were trained for other data, weights or noise than the "
            f"study has now; the first is {files[0]}: found {next(iter(differing.values()))}",
            tuple(files),
        )
    missing += files
    former = {(cell.problem, cell.name) for cell in differing}
    kept = [each not in former for each in zip(trials["problem"], trials["cell"], strict=True)]
    return trials[kept]


def _inputs(
    study: Study, paths: Paths, problem: str
) -> Iterator[tuple[str, tuple[Any, str | Path]]]:
    """Yield columns of a problem's trials, each with the required value and its source."""
    parts = study.problems[problem]
    yield "trainer_version", (TRAINER_VERSION, "this version of dpsweep")
    checksums = {}
    for part, column, folder in (
        ("dataset", "data_checksum", paths.dataset(parts.dataset)),
        ("backbone", "backbone_checksum", paths.backbone(parts.backbone)),
    ):
        file = folder / "metadata.json"
        if content := _read(file):
            checksums[part] = content["checksum"]
            yield column, (content["checksum"], file)
            if part == "dataset":
                yield "classes_checksum", (fingerprint(content["classes"]), file)
    if study.features(problem) is None:
        return
    # Trials read the features instead of the dataset; their metadata records the data and weights.
    file = paths.features(parts.dataset, parts.backbone) / "metadata.json"
    if content := _read(file):
        former = [part for part in checksums if checksums[part] != content["features"][part]]
        value = f"features of another {former[0]}" if former else content["checksum"]
        yield "data_checksum", (value, file)


def _read(file: Path) -> dict[str, Any]:
    """Return the content of a prepared file; empty if absent, because users remove data to save space."""
    try:
        return read_checked_json(file)
    except FileNotFoundError:
        return {}


_COLUMN = "trainer_sources"


def other_sources(study: Study, paths: Paths) -> str:
    """Return a sentence with the number of cells that have trials of other sources; '' for none.

    Only file footers are read, so thousands of cells take a second. Trials without recorded sources are
    ignored. Files that are not parquet are ignored too: loading them reports the error.
    """
    current, trained, former = sources(*TRAINER), 0, 0
    for cell in study.all_cells():
        file = paths.cell_trials(study, cell)
        if file.exists():
            trained += 1
            former += bool(_recorded(file) - {current, ""})
    if not former:
        return ""
    return (
        f"{former:,} of {trained:,} trained cells have trials of another version of the trainer's code. They "
        f"are used; to train them again, remove {paths.results / 'cells'} and {paths.trials}"
    )


def _recorded(file: Path) -> set[str]:
    """Return the smallest and largest checksum in a file of trials (equal if there is only one)."""
    try:
        metadata = pq.read_metadata(file)
    except (OSError, ArrowException):
        return set()
    columns = [
        metadata.row_group(group).column(column)
        for group in range(metadata.num_row_groups)
        for column in range(metadata.num_columns)
    ]
    ends = [each.statistics for each in columns if each.path_in_schema == _COLUMN]
    return {end for each in ends if each is not None for end in (each.min, each.max)}
