"""Comparison of optimizers with a baseline optimizer in the same settings, seed by seed.

A setting is a (dataset, backbone, method, clipping rule, epsilon, epochs). In each setting, every optimizer
has its own best batch size, clipping bound and learning rate. It is measured by seeds that did not choose
them (`dpsweep.study.choice`). Runs with the same seed share initial parameters and data, so differences are
taken seed by seed.
"""

from typing import Any

import numpy as np
import pandas as pd

from dpsweep.analysis.statistics import Estimate, jackknife
from dpsweep.study.choice import AXES, CELL, choose, measured_by_others, repeats

SETTING = ["dataset", "backbone", "method", "clipping", "epsilon", "epochs"]
OVER = {"gain": "", "over_last": "last_"}
"""Columns of differences, with the prefix of their columns in the tables."""
_KEY = [*SETTING, "optimizer"]
_GAINS = [*_KEY, "seed", "accuracy", "gain", "over_last"]


def paired_gains(trials: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """Return one row per (setting, optimizer, seed): accuracy, and the difference to the baseline.

    Args:
        trials: a row per trial, as `dpsweep.analysis.frames.load_trials` reads them, and perhaps
            ``last_macro_accuracy``, which is NaN if the optimizer does not average parameters.
        baseline: the optimizer that others are compared with.

    Returns:
        Columns `SETTING`, ``optimizer``, ``seed``, ``accuracy``, ``gain`` (0 for the baseline, NaN if the
        baseline lacks the seed), ``over_last`` (averaged minus last parameters of the same training).
    """
    tuned = repeats(trials).assign(
        last=lambda rows: rows.get("last_macro_accuracy", pd.Series(np.nan, rows.index))
    )
    found = []
    for key, group in tuned.groupby(_KEY, sort=False):
        selection, accuracy, last = (
            _by_seed(group, column) for column in ("selection_accuracy", "macro_accuracy", "last")
        )
        seeds = group["seed"].sort_values().unique()[: selection.shape[1]]
        measured = measured_by_others(selection, accuracy)
        over_last = measured - measured_by_others(selection, last)
        rows = {"seed": seeds[1:], "accuracy": measured, "over_last": over_last}
        known: dict[str, Any] = dict(zip(_KEY, key, strict=True))
        found.append(pd.DataFrame(rows).assign(**known))
    if not found:
        return pd.DataFrame(columns=_GAINS)
    gains = pd.concat(found, ignore_index=True)
    base = gains.loc[gains["optimizer"] == baseline, [*SETTING, "seed", "accuracy"]]
    gains = gains.merge(
        base, on=[*SETTING, "seed"], how="left", suffixes=("", "_of_baseline"), sort=False
    )
    gains["gain"] = gains["accuracy"] - gains.pop("accuracy_of_baseline")
    return gains[_GAINS]


def _by_seed(
    group: pd.DataFrame, column: str
) -> "np.ndarray[tuple[int, int], np.dtype[np.float64]]":
    """Return a column of a setting's cells, in order of the axes, shape (cells, seeds of all cells)."""
    order = group.drop_duplicates(CELL).sort_values(AXES, kind="stable")
    table = group.pivot(index=CELL, columns="seed", values=column)
    cells = table.loc[pd.MultiIndex.from_frame(order[CELL])].to_numpy(dtype=np.float64)
    # While seeds are added to a study, some cells have more seeds than others.
    fewest = int(group.groupby(CELL)["seed"].nunique().min())
    return cells[:, :fewest]


def settings_table(trials: pd.DataFrame, gains: pd.DataFrame) -> pd.DataFrame:
    """Return one row per (setting, optimizer): the chosen cell, and gains with intervals over seeds."""
    chosen = choose(trials, by=_KEY)
    kept = [*_KEY, "batch_size", "clipping_bound", "learning_rate", "cross_fitted", "repeats"]
    rows = [
        dict(zip(_KEY, key, strict=True)) | _estimates(group)
        for key, group in gains.groupby(_KEY, sort=False)
    ]
    if not rows:
        return pd.DataFrame(columns=kept)
    return chosen[kept].merge(pd.DataFrame(rows), on=_KEY, how="left")


def optimizers_table(gains: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """Return one row per (epsilon, optimizer), and one per optimizer over all epsilons (epsilon is NaN).

    ``gain``, with ``lower`` and ``upper``: the mean over settings; the interval is over seeds, so it is
    valid for other seeds in these settings. ``lower_elsewhere``, ``upper_elsewhere``: the interval with
    problems (dataset, backbone, method) as units; NaN for a single problem. ``better`` and ``worse`` count
    the settings whose own interval over seeds excludes 0. ``last_gain`` and so on compare averaged with
    last parameters of the same trainings. All are in percentage points.
    """
    gains = gains.assign(
        problem_name=gains["dataset"] + "/" + gains["backbone"] + "/" + gains["method"]
    )
    rows = []
    others = [name for name in dict.fromkeys(gains["optimizer"]) if name != baseline]
    for epsilon in [*sorted(gains["epsilon"].unique()), np.nan]:
        for optimizer in others:
            own = gains[gains["optimizer"] == optimizer].dropna(subset="gain")
            own = own if np.isnan(epsilon) else own[own["epsilon"] == epsilon]
            if len(own):
                rows.append({"epsilon": epsilon, "optimizer": optimizer} | _summary(own))
    # With a single epsilon, the rows over all epsilons would repeat the others.
    table = pd.DataFrame(rows)
    return table.dropna(subset="epsilon") if gains["epsilon"].nunique() == 1 else table


def _summary(own: pd.DataFrame) -> dict[str, float]:
    settings = [_estimates(group) for _, group in own.groupby(SETTING, sort=False)]
    elsewhere = _estimate(own, "gain", "problem_name")
    return {
        "settings": len(settings),
        **_estimates(own),
        "lower_elsewhere": elsewhere.lower,
        "upper_elsewhere": elsewhere.upper,
        "problems": own["problem_name"].nunique(),
        "better": sum(each["lower"] > 0 for each in settings),
        "worse": sum(each["upper"] < 0 for each in settings),
    }


def _estimates(rows: pd.DataFrame) -> dict[str, float]:
    """Return gains with intervals over seeds, in points."""
    found: dict[str, float] = {}
    for column, prefix in OVER.items():
        estimate = _estimate(rows, column, "seed")
        found |= {
            f"{prefix}gain": estimate.value,
            f"{prefix}lower": estimate.lower,
            f"{prefix}upper": estimate.upper,
        }
    return found


def _estimate(rows: pd.DataFrame, column: str, unit: str) -> Estimate:
    """Return the mean of a column over the settings in points, with an interval over the units."""
    known = rows.dropna(subset=column).assign(problem=lambda some: some[unit])

    def mean(some: pd.DataFrame) -> float:
        return 100 * float(some.groupby(SETTING)[column].mean().mean())

    return jackknife(known, mean)
