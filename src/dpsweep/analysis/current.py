"""Compare trials with the prepared files of today, and refuse what was trained for others.

The names of files tell the settings that they were made for (`dpsweep.study.fingerprints.MadeFor`). What no
name can tell is here: that the data, the weights or the noise have been made again since, with another
content, and a file of trials is from before, or was put back from a backup.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from dpsweep import TRAINER_VERSION
from dpsweep.base.errors import DpsweepError
from dpsweep.base.files import fingerprint, read_checked_json
from dpsweep.study import Cell, Study
from dpsweep.study.paths import Paths

MADE_FROM = ["data_checksum", "classes_checksum", "backbone_checksum", "trainer_version"]
"""Columns of ``trials.parquet`` that tell what a trial was made from."""
COMPARED = ["train_size", "steps", "noise_multiplier", *MADE_FROM]
"""Columns that must be as in the prepared files of today."""


class FormerResultsError(DpsweepError):
    """Results of other data, weights or noise than those of today."""


class _Fact(NamedTuple):
    """The value that a column must hold, and its source."""

    value: Any
    source: str


def current_trials(
    study: Study, paths: Paths, trials: pd.DataFrame, missing: list[Path] | None = None
) -> pd.DataFrame:
    """The trials that were trained for what is prepared today.

    N and T are compared with the study; sigma and the checksums of data, classes and weights with the files
    that hold them, as far as these are there.

    Args:
        study: the study.
        paths: its files.
        trials: a row per trial, with ``problem``, ``cell`` (the cell's name) and `COMPARED`.
        missing: files of other trials are added to it, and their rows left out.

    Raises:
        FormerResultsError: some were trained for something else, and ``missing`` is None.
    """
    today = _Today(study, paths)
    differing: dict[Cell, str] = {}
    rows = trials[["problem", "cell", *COMPARED]].drop_duplicates()
    for problem, name, *found in rows.itertuples(index=False, name=None):
        cell = Cell.parse(problem, name)
        expected = today.facts(cell)
        for column, value in zip(COMPARED, found, strict=True):
            fact = expected.get(column)
            if fact is not None and value != fact.value:
                differing.setdefault(cell, f"{column} {value}; {fact.source} has {fact.value}")
    if not differing:
        return trials
    files = [paths.cell_trials(study, cell) for cell in differing]
    if missing is None:
        count = trials[["problem", "cell"]].drop_duplicates().shape[0]
        raise FormerResultsError(
            f"{len(files)} of {count} cells were trained for other data, weights or noise than those of "
            f"today; the first is {files[0]}: found {next(iter(differing.values()))}",
            tuple(files),
        )
    missing += files
    former = {(cell.problem, cell.name) for cell in differing}
    kept = [each not in former for each in zip(trials["problem"], trials["cell"], strict=True)]
    return trials[kept]


class _Today:
    """The settings that the trials of a study must have been trained for."""

    def __init__(self, study: Study, paths: Paths) -> None:
        self._study, self._paths = study, paths
        self._of_problem = cache(lambda name: dict(self._inputs(name)))
        self._noise = cache(_noise)

    def facts(self, cell: Cell) -> dict[str, _Fact]:
        """By column, as far as they are known."""
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
        """The data and the weights of a problem."""
        parts, paths = self._study.problems[problem], self._paths
        yield "trainer_version", _Fact(TRAINER_VERSION, "this version of dpsweep")
        data, weights = paths.dataset(parts.dataset), paths.backbone(parts.backbone)
        checksums = {}
        for column, folder in (("data_checksum", data), ("backbone_checksum", weights)):
            content = _read(folder / "metadata.json")
            if content:
                checksums[column] = content["checksum"]
                yield column, _Fact(content["checksum"], str(folder / "metadata.json"))
            if content and folder == data:
                where = str(folder / "metadata.json")
                yield "classes_checksum", _Fact(fingerprint(content["classes"]), where)
        if self._study.features(problem) is None:
            return
        # Trials read the features in the place of the dataset; these tell what they were computed from.
        file = paths.features(parts.dataset, parts.backbone) / "metadata.json"
        content = _read(file)
        if content:
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
    """The content of a prepared file; nothing where it is not there, for data may be removed for its size."""
    try:
        return read_checked_json(file)
    except FileNotFoundError:
        return {}
