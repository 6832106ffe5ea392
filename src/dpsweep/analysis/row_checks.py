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
from typing import Any, NamedTuple

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


class _Fact(NamedTuple):
    """The required value of a column, and its source."""

    value: Any
    source: str


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
    expected = _ExpectedValues(study, paths)
    differing: dict[Cell, str] = {}
    rows = trials[["problem", "cell", *COMPARED]].drop_duplicates()
    for problem, name, *found in rows.itertuples(index=False, name=None):
        cell = Cell.parse(problem, name)
        facts = expected.facts(cell)
        for column, value in zip(COMPARED, found, strict=True):
            fact = facts.get(column)
            if fact is not None and value != fact.value:
                differing.setdefault(cell, f"{column} {value}; {fact.source} has {fact.value}")
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


class _ExpectedValues:
    """The values that the trials of a study must have."""

    def __init__(self, study: Study, paths: Paths) -> None:
        self._study, self._paths = study, paths
        self._of_problem = cache(lambda name: dict(self._inputs(name)))
        self._noise = cache(_noise)

    def facts(self, cell: Cell) -> dict[str, _Fact]:
        """Return the known values by column."""
        dataset = self._study.problems[cell.problem].dataset
        steps = self._study.steps(dataset, cell.epochs, cell.batch_size)
        noise = self._paths.noise(self._study, dataset, cell.epsilon, cell.epochs, cell.batch_size)
        return {
            "train_size": _Fact(self._study.train_size(dataset), "the study"),
            "steps": _Fact(steps, "the study"),
            **self._noise(noise),
            **self._of_problem(cell.problem),
        }

    def _inputs(self, problem: str) -> Iterator[tuple[str, _Fact]]:
        """Yield the required checksums and trainer version of a problem, by column."""
        parts, paths = self._study.problems[problem], self._paths
        yield "trainer_version", _Fact(TRAINER_VERSION, "this version of dpsweep")
        data, weights = paths.dataset(parts.dataset), paths.backbone(parts.backbone)
        checksums = {}
        for column, folder in (("data_checksum", data), ("backbone_checksum", weights)):
            file = folder / "metadata.json"
            if content := _read(file):
                checksums[column] = content["checksum"]
                yield column, _Fact(content["checksum"], str(file))
                if folder == data:
                    yield "classes_checksum", _Fact(fingerprint(content["classes"]), str(file))
        if self._study.features(problem) is None:
            return
        # Trials read the features instead of the dataset; their metadata records the data and weights.
        file = paths.features(parts.dataset, parts.backbone) / "metadata.json"
        if content := _read(file):
            of = content["features"]
            former = [
                name
                for name, column in (
                    ("dataset", "data_checksum"),
                    ("backbone", "backbone_checksum"),
                )
                if checksums.get(column, of[name]) != of[name]
            ]
            value = f"features of another {former[0]}" if former else content["checksum"]
            yield "data_checksum", _Fact(value, str(file))


def _noise(file: Path) -> dict[str, _Fact]:
    content = _read(file)
    sigma = content.get("noise_multiplier")
    return {"noise_multiplier": _Fact(sigma, str(file))} if content else {}


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
