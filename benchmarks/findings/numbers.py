"""The numbers of docs/findings.md, from the trials of its studies.

Trials are committed in a compact form, so another analysis does not need training.
"""

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import norm

from benchmarks.common import RESULTS
from dpsweep.analysis.evidence import compare, evidence_table
from dpsweep.analysis.frames import load_trials
from dpsweep.analysis.statistics import grids
from dpsweep.base.files import atomic_path
from dpsweep.study import Cell, Paths, Study
from dpsweep.study.choice import choose, repeats
from dpsweep.study.datasets import related_datasets

NUMBERS = RESULTS / "findings.json"
TRIALS = NUMBERS.with_name("frozen_features.parquet")
PROBLEM = ["dataset", "backbone", "epsilon", "epochs"]
BEST_COLUMNS = [
    *PROBLEM, "batch_size", "train_size", "clipping_bound", "learning_rate", "centre",
    "minimum", "maximum", "cross_fitted",
]  # fmt: skip
RULE_COLUMNS = [
    "rule", "condition", "implication", "effect_measured", "unit", "margin", "threshold", "effect",
    "lower_here", "upper_here", "smallest_visible_here", "comparisons", "units", "needs",
    "in_favour", "against", "at_an_end", "verdict",
]  # fmt: skip


def gather(
    study: Study, paths: Paths, cells: Sequence[Cell], also: Sequence[str] = ()
) -> pd.DataFrame:
    """Return the trials of cells with the columns of the analysis, wall times, and gradient norms."""
    trials = load_trials(study, paths, cells, also=also)
    columns = ["trial_key", "wall_seconds", "mean_gradient_norm"]
    others = pd.concat(
        pd.read_parquet(paths.cell_trials(study, cell), columns=columns) for cell in cells
    ).drop_duplicates("trial_key")
    others = others.round({"wall_seconds": 2, "mean_gradient_norm": 4})
    return trials.merge(others, on="trial_key", how="left")


def keep_trials(trials: pd.DataFrame, file: Path) -> None:
    """Write the trials of cells to a file, and keep the file's trials of other cells."""
    if file.exists():
        before, place = pd.read_parquet(file), ["problem", "cell"]
        new = pd.MultiIndex.from_frame(trials[place])
        trials = pd.concat([before[~pd.MultiIndex.from_frame(before[place]).isin(new)], trials])
    with atomic_path(file) as partial:
        trials.to_parquet(partial, compression="zstd", index=False)


def norm_before_training(trials: pd.DataFrame) -> float:
    """Return the median gradient norm with the smallest learning rate, which hardly changes a model."""
    known = trials[trials["mean_gradient_norm"].notna()]
    smallest = known["learning_rate"] == known["learning_rate"].min()
    return float(known.loc[smallest, "mean_gradient_norm"].median())


def collect(study: Study, trials: pd.DataFrame) -> dict[str, Any]:
    """Return all numbers of the tables.

    Args:
        study: the study of the trials.
        trials: from `gather`.
    """
    costs = trials.drop_duplicates("trial_key")
    flat, automatic = (trials[trials["clipping"] == kind] for kind in ("flat", "automatic"))
    comparisons = compare(
        grids(flat, {name: each.test_size for name, each in study.datasets.items()})
    )
    best = repeats(trials).groupby(["problem", "cell"])["learning_rate"].first()
    rates = {
        (cell.problem, cell.name): study.sweeps[study.sweep_of(cell)].learning_rates
        for cell in study.all_cells()
    }
    at_an_end = sum(rate in (rates[key][0], rates[key][-1]) for key, rate in best.items())
    by_bound = _along(flat, "clipping_bound")
    counts = sorted({len(row["values"]) for row in by_bound})
    found = {
        "study": {
            "cells": len(study.all_cells()),
            "trials": len(costs),
            "hours": round(float(costs["wall_seconds"].sum()) / 3600, 2),
            "seeds": int(trials["seed"].max()),
        },
        "ends": {"cells": len(best), "at_an_end": at_an_end},
        "best": _plain(choose(flat, PROBLEM)[BEST_COLUMNS]),
        "by_bound": by_bound,
        "by_batch_size": _along(flat, "batch_size"),
        "chance": {str(count): round(by_chance(trials, count), 2) for count in counts},
        "rules": _plain(
            evidence_table(comparisons, related_datasets(study.datasets))[RULE_COLUMNS]
        ),
        "titles": {
            name: each.title for name, each in [*study.datasets.items(), *study.backbones.items()]
        },
    }
    if len(automatic):
        found["automatic"] = _automatic(flat, automatic)
        found["beside_smallest"] = _beside_smallest(flat, automatic)
    return found


def _plain(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return rows for JSON: None for NaN, four digits."""

    def plain(value: Any) -> Any:
        if isinstance(value, float | np.floating):
            return None if np.isnan(value) else float(f"{value:.4g}")
        return int(value) if isinstance(value, np.integer) else value

    return [
        {str(key): plain(value) for key, value in row.items()} for row in frame.to_dict("records")
    ]


def _along(trials: pd.DataFrame, axis: str) -> list[dict[str, Any]]:
    """Return the accuracy along C or B, all else tuned; only seeds that did not choose measure it."""
    return [
        dict(zip(PROBLEM, key, strict=True))
        | {"values": group[axis].tolist()}
        | {"accuracy": [round(value, 4) for value in group["cross_fitted"]]}
        for key, group in choose(trials, [*PROBLEM, axis]).groupby(PROBLEM)
    ]


def _automatic(flat: pd.DataFrame, automatic: pd.DataFrame) -> list[dict[str, Any]]:
    """Compare AUTO-S with flat clipping and a tuned C; B is tuned for both."""
    both = choose(flat, PROBLEM).merge(
        choose(automatic, PROBLEM), on=PROBLEM, suffixes=("", "_auto")
    )
    both["difference"] = both["cross_fitted_auto"] - both["cross_fitted"]
    return _plain(both[[*PROBLEM, "cross_fitted", "cross_fitted_auto", "difference"]])


def _beside_smallest(flat: pd.DataFrame, automatic: pd.DataFrame) -> dict[str, float]:
    """Compare AUTO-S with the smallest C at the same B: both clip everything, so differences are noise."""
    keys = [*PROBLEM, "batch_size"]

    def measured(trials: pd.DataFrame) -> "pd.Series[float]":
        tuned = repeats(trials)
        return tuned[tuned["seed"] > 1].groupby(keys)["macro_accuracy"].mean()

    smallest = flat["clipping_bound"] == flat.groupby(PROBLEM)["clipping_bound"].transform("min")
    difference = 100 * (measured(automatic) - measured(flat[smallest])).dropna()
    return {
        "cells": len(difference),
        "mean": round(float(difference.mean()), 2),
        "deviation": round(float(difference.std()), 2),
    }


def by_chance(trials: pd.DataFrame, count: int) -> float:
    """Return the mean loss of ``count`` equally good values against the best of them, in points.

    Seeds that did not tune the learning rate scatter, so the best of several means is too high by chance.
    """
    measuring = repeats(trials[trials["clipping"] == "flat"])
    cells = measuring[measuring["seed"] > 1].groupby(["problem", "cell"])["macro_accuracy"]
    error = math.sqrt((cells.var() / cells.size()).mean())
    highest = norm.expect(lambda x: count * x * norm.cdf(x) ** (count - 1))
    return 100 * float(highest) * error


def digest(file: Path) -> str:
    """Return the SHA-256 of a picture."""
    return hashlib.sha256(file.read_bytes()).hexdigest()
