"""Reference points: the best settings of sweeps, as they come with dpsweep or from your own results."""

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from pathlib import Path

import pandas as pd
from pydantic import TypeAdapter

from dpsweep.base.errors import DpsweepError
from dpsweep.base.litter import is_litter
from dpsweep.recommend.rule import Reference, source
from dpsweep.study.choice import best_by_mean

INCLUDED = Path(__file__).with_name("references.csv")
"""Reference points of the sweeps that docs/recommend.md names."""
_JSON = TypeAdapter(Reference)
PROBLEM = ["dataset", "backbone", "method", "optimizer", "epsilon", "epochs"]
_SETTING = ["batch_size", "clipping_bound", "learning_rate"]
_FIELDS = [*PROBLEM, *_SETTING, "steps"]
_COLUMNS = [*_FIELDS, "train_size", "noise_multiplier", "clipping"]
_ACCURACIES = ["macro_accuracy", "selection_accuracy"]


def read_references(file: Path = INCLUDED) -> list[Reference]:
    """Read reference points from a CSV file of `write_references`."""
    with file.open(encoding="utf-8", newline="") as stream:
        return [_JSON.validate_python(row) for row in csv.DictReader(stream)]


def write_references(file: Path, references: Iterable[Reference]) -> None:
    """Write reference points as CSV."""
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(
            stream, [field.name for field in fields(Reference)], lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(map(asdict, references))


def unrelated(references: Iterable[Reference], dataset: str) -> list[Reference]:
    """The reference points of other data: those of the same would tell what was learnt from them."""
    return [each for each in references if each.source != source(dataset)]


def problem_tables(folders: Sequence[Path], columns: list[str] | None = None) -> pd.DataFrame:
    """Read the trials of folders of problem tables (``results/<study>/problems``).

    Args:
        folders: the folders.
        columns: of the tables; None reads all of them.

    Raises:
        DpsweepError: a folder has no such table.
    """
    frames = []
    for folder in folders:
        files = sorted(file for file in folder.glob("*.parquet") if not is_litter(file.name))
        if not files:
            raise DpsweepError(f"{folder}: found no problem tables (*.parquet)")
        frames += [pd.read_parquet(file, columns=columns) for file in files]
    return pd.concat(frames)


def trained_settings(folders: Sequence[Path]) -> pd.DataFrame:
    """The settings of folders of problem tables; see `settings_of`.

    Raises:
        DpsweepError: a folder has no such table.
    """
    columns = [*_COLUMNS, *_ACCURACIES, "mean_gradient_norm", "best"]
    return settings_of(problem_tables(folders, columns))


def settings_of(trials: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds for every private setting with a clipping bound or AUTO-S.

    ``best`` says whether its learning rate is the one that was tuned for its B and C. A seed without an
    accuracy (NaN) leaves its setting without one.
    """
    settings = trials[trials["epsilon"] < math.inf].groupby(_COLUMNS, dropna=False)
    accuracies = settings[_ACCURACIES]
    means = accuracies.mean().where(accuracies.count().eq(settings.size(), axis=0))
    norms = settings["mean_gradient_norm"].mean()
    return means.assign(mean_gradient_norm=norms, best=settings["best"].max()).reset_index()


def swept_problems(settings: pd.DataFrame) -> list[pd.DataFrame]:
    """The settings of each (problem, epsilon, epochs) with several flat bounds and batch sizes."""
    return [
        group
        for _, group in settings.groupby(PROBLEM)
        if group["batch_size"].nunique() > 1
        and group.loc[group["clipping"] == "flat", "clipping_bound"].nunique() > 1
    ]


def references_of(problems: Iterable[pd.DataFrame]) -> list[Reference]:
    """The best flat setting of each problem, chosen as in every figure (`dpsweep.study.choice`)."""
    found = []
    for group in problems:
        flat = group[group["clipping"] == "flat"]
        # Other learning rates may have been trained with one lucky seed.
        tuned = flat[flat["best"]]
        best = tuned.iloc[best_by_mean(tuned[["selection_accuracy"]].to_numpy())]
        norm = float(f"{norm_before_training(flat):.4g}")
        found.append(_JSON.validate_python({**best[_FIELDS].to_dict(), "gradient_norm": norm}))
    return found


def norm_before_training(trials: pd.DataFrame) -> float:
    """The gradient norm of the trials with the smallest learning rate, which hardly change a model."""
    known = trials[trials["mean_gradient_norm"].notna()]
    smallest = known["learning_rate"] == known["learning_rate"].min()
    return float(known.loc[smallest, "mean_gradient_norm"].median())
