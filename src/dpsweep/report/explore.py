"""The interactive page of a study: accuracy of every cell over its hyperparameters, and its trials.

The page contains summaries of all cells as columns. It contains the trials of each problem in packed form,
which the browser unpacks when a reader clicks a cell.
"""

import base64
import gzip
import json
import math
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dpsweep.analysis.frames import REPORT_COLUMNS, present_trials
from dpsweep.analysis.statistics import as_good_as_best
from dpsweep.base.files import write_text
from dpsweep.report.embed import batch_text, bound_text, render, titles, values
from dpsweep.study import Cell, Paths, Study
from dpsweep.study.choice import CELL, choose, repeats, summarise
from dpsweep.study.fingerprints import report_fingerprint, write_settings
from dpsweep.study.load import name_of

_MEASURED = ["mean_gradient_norm", "clipped_fraction"]
_READ = [*REPORT_COLUMNS, "steps", "noise_multiplier", *_MEASURED]
_OF_TRIALS = [
    "learning_rate", "seed", "best", "macro_accuracy", "selection_accuracy", *_MEASURED, "diverged",
]  # fmt: skip
_DIGITS = 5


def write(study: Study, study_file: Path, paths: Paths) -> None:
    """Write ``explore.html`` of the trials that exist: one self-contained file.

    Equal results give equal bytes.

    Args:
        study: the study.
        study_file: its file, for the commands that the page shows.
        paths: its files; the page is ``paths.explore``.

    Raises:
        UnreadableResultsError: a trial file is damaged or lacks a column.
    """
    trials = present_trials(study, paths, _READ)
    write_text(paths.explore, page(study, study_file, trials, partial=paths.partial))
    write_settings(paths.explore, report_fingerprint(study))


def page(
    study: Study,
    study_file: Path,
    trials: pd.DataFrame,
    report: str = "report.html",
    partial: bool = False,
) -> str:
    """Return the page of some trials: self-contained HTML.

    Args:
        study: the study.
        study_file: as for `write`.
        trials: one row per trial: ``problem``, ``cell`` (its name), and columns of a cell's file.
        report: the address of the report, for a link.
        partial: whether to note that cells are missing.
    """
    trials = trials.drop_duplicates("trial_key")
    found = problems(study, trials)
    return render(
        "explore.html.j2",
        script="explore.js",
        title=study.title,
        report=report,
        partial=partial,
        trial_count=len(trials),
        content=_json({"problems": found, "command": _command(study_file)}),
        packed=[packed(trials[trials["problem"] == each["name"]]) for each in found],
    )


def problems(study: Study, trials: pd.DataFrame) -> list[dict[str, Any]]:
    """Return titles and cells of every problem with trials; cells are columns of equal length."""
    if trials.empty:
        return []
    cells = summarise(trials).merge(
        repeats(trials).groupby(CELL, as_index=False)[_MEASURED].mean(), on=CELL
    )
    best = choose(trials, by=["problem", "epsilon", "epochs"])
    cells["best"] = cells["trial_key"].isin(best["trial_key"])
    cells["as_good"] = False
    for problem, of_problem in cells.groupby("problem"):
        own = trials[trials["problem"] == problem]
        for _, group in of_problem.groupby(["epsilon", "epochs"]):
            cells.loc[group.index, "as_good"] = as_good_as_best(group, own)
    order = ["epsilon", "epochs", "clipping_bound", "batch_size"]
    return [
        {
            "name": name,
            **{part.lower(): title for part, title in titles(study, name).items()},
            "cells": _columns(cells[cells["problem"] == name].sort_values(order)),
        }
        for name in study.problems
        if (cells["problem"] == name).any()
    ]


def _columns(cells: pd.DataFrame) -> dict[str, list[Any]]:
    parsed = [Cell.parse(*key) for key in zip(cells["problem"], cells["cell"], strict=True)]
    sizes = [int(size) for size in cells["batch_size"]]
    noise = cells["noise_multiplier"] * np.sqrt(cells["steps"])
    return {
        "cell": [cell.name for cell in parsed],
        "epsilon": [values([cell.epsilon]) for cell in parsed],
        "epochs": [str(cell.epochs) for cell in parsed],
        "C": [bound_text(cell.clipping_bound) for cell in parsed],
        "B": [batch_text(cell.batch_size, n) for cell, n in zip(parsed, sizes, strict=True)],
        "steps": [int(steps) for steps in cells["steps"]],
        "noise": _numbers(noise),
        "accuracy": _numbers(cells["centre"]),
        "lowest": _numbers(cells["minimum"]),
        "highest": _numbers(cells["maximum"]),
        "seeds": [int(count) for count in cells["repeats"]],
        "rate": _numbers(cells["learning_rate"]),
        "norm": _numbers(cells["mean_gradient_norm"]),
        "clipped": _numbers(cells["clipped_fraction"]),
        "diverged": [int(count) for count in cells["diverged"]],
        "best": [int(flag) for flag in cells["best"]],
        "as_good": [int(flag) for flag in cells["as_good"]],
    }


def packed(trials: pd.DataFrame) -> str:
    """Pack the trials of one problem as columns, in base64 of gzip of JSON; cells are numbered by name."""
    names = sorted(trials["cell"].unique())
    columns: dict[str, Any] = {"names": names}
    columns["cell"] = trials["cell"].map({name: i for i, name in enumerate(names)}).tolist()
    for name in _OF_TRIALS:
        whole = name in ("seed", "best", "diverged")
        columns[name] = [int(each) for each in trials[name]] if whole else _numbers(trials[name])
    # Without a time stamp, equal trials give equal bytes.
    return base64.b64encode(gzip.compress(_json(columns).encode(), mtime=0)).decode("ascii")


def _numbers(column: "pd.Series[float]") -> list[float | None]:
    return [
        float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
        for value in column.astype(float)
    ]


def _json(content: Any) -> str:
    # A browser ends a script element at the first </script, even inside a string.
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _command(study_file: Path) -> str:
    """Write the command that trains a cell, with PROBLEM and CELL in the place of its names."""
    shown = Path(name_of(study_file))
    if shown.is_absolute():
        here = Path.cwd()
        shown = shown.relative_to(here) if shown.is_relative_to(here) else Path(shown.name)
    return shlex.join(["dpsweep", "run", str(shown), "PROBLEM/CELL"])
