"""Optimizers compared with one of them in the same settings, seed by seed.

A setting is a (dataset, backbone, method, rule of clipping, epsilon, epochs). In each, every optimizer has
the batch size, the clipping bound and the learning rate that it is best with, and is measured by seeds that
did not choose (`dpsweep.study.choice`). Seeds share initial parameters and data, so differences are taken
seed by seed.
"""

from typing import Any

import numpy as np
import pandas as pd

from dpsweep.analysis.statistics import Estimate, jackknife
from dpsweep.study.choice import AXES, CELL, choose, measured_by_others, repeats

SETTING = ["dataset", "backbone", "method", "clipping", "epsilon", "epochs"]
OVER = {"gain": "", "over_last": "last_"}
"""The accuracies that are compared, with the prefix of their columns in the tables."""


def paired_gains(trials: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """One row per (setting, optimizer, seed): accuracy, and what it is beyond the baseline's.

    Args:
        trials: a row per trial, as `dpsweep.analysis.frames.load_trials` reads them, and perhaps
            ``last_macro_accuracy``, which is NaN where the optimizer has no average.
        baseline: the optimizer that others are compared with.

    Returns:
        Columns `SETTING`, ``optimizer``, ``seed``, ``accuracy``, ``gain`` (0 for the baseline, NaN where it
        has no such seed), ``over_last`` (the average beyond the last parameters of the same training).
    """
    tuned = repeats(trials).assign(
        last=lambda rows: rows.get("last_macro_accuracy", pd.Series(np.nan, rows.index))
    )
    found = []
    for key, group in tuned.groupby([*SETTING, "optimizer"], sort=False):
        selection, accuracy, last = (
            _by_seed(group, column) for column in ("selection_accuracy", "macro_accuracy", "last")
        )
        seeds = group["seed"].sort_values().unique()[: selection.shape[1]]
        measured = measured_by_others(selection, accuracy)
        over_last = measured - measured_by_others(selection, last)
        rows = {"seed": seeds[1:], "accuracy": measured, "over_last": over_last}
        known: dict[str, Any] = dict(zip([*SETTING, "optimizer"], key, strict=True))
        found.append(pd.DataFrame(rows).assign(**known))
    if not found:
        return pd.DataFrame(
            columns=[*SETTING, "optimizer", "seed", "accuracy", "gain", "over_last"]
        )
    gains = pd.concat(found, ignore_index=True)
    base = gains.loc[gains["optimizer"] == baseline, [*SETTING, "seed", "accuracy"]]
    gains = gains.merge(
        base, on=[*SETTING, "seed"], how="left", suffixes=("", "_of_baseline"), sort=False
    )
    gains["gain"] = gains["accuracy"] - gains.pop("accuracy_of_baseline")
    return gains[[*SETTING, "optimizer", "seed", "accuracy", "gain", "over_last"]]


def _by_seed(
    group: pd.DataFrame, column: str
) -> "np.ndarray[tuple[int, int], np.dtype[np.float64]]":
    """A column of the cells of a setting, shape (cells, seeds that all cells have), in order of the axes."""
    order = group.drop_duplicates(CELL).sort_values(AXES, kind="stable")
    table = group.pivot(index=CELL, columns="seed", values=column)
    cells = table.loc[pd.MultiIndex.from_frame(order[CELL])].to_numpy(dtype=np.float64)
    # While a study is extended by seeds, some cells have more of them.
    fewest = int(group.groupby(CELL)["seed"].nunique().min())
    return cells[:, :fewest]


def settings_table(trials: pd.DataFrame, gains: pd.DataFrame) -> pd.DataFrame:
    """One row per (setting, optimizer): what all seeds choose, and gains with intervals over seeds."""
    chosen = choose(trials, by=[*SETTING, "optimizer"])
    kept = [
        *SETTING, "optimizer", "batch_size", "clipping_bound", "learning_rate", "cross_fitted",
        "repeats",
    ]  # fmt: skip
    rows = [
        dict(zip([*SETTING, "optimizer"], key, strict=True)) | _estimates(group, "seed")
        for key, group in gains.groupby([*SETTING, "optimizer"], sort=False)
    ]
    if not rows:
        return pd.DataFrame(columns=kept)
    return chosen[kept].merge(pd.DataFrame(rows), on=[*SETTING, "optimizer"], how="left")


def optimizers_table(gains: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """One row per (epsilon, optimizer), and one per optimizer over all epsilons (epsilon is NaN).

    ``gain``, with ``lower`` and ``upper``: the mean over settings; the interval is over seeds, so it says
    what other seeds would give in these settings. ``lower_elsewhere``, ``upper_elsewhere``: the interval
    over problems (dataset, backbone, method), as units; NaN for one. ``better`` and ``worse`` count the
    settings whose own interval over seeds excludes 0. ``last_gain`` and so on compare an average with the
    last parameters of the same trainings. All are in percentage points.
    """
    gains = gains.assign(
        problem_name=[
            "/".join(parts)
            for parts in gains[["dataset", "backbone", "method"]].itertuples(index=False)
        ]
    )
    rows = []
    others = [name for name in dict.fromkeys(gains["optimizer"]) if name != baseline]
    for epsilon in [*sorted(gains["epsilon"].unique()), np.nan]:
        for optimizer in others:
            own = gains[gains["optimizer"] == optimizer].dropna(subset="gain")
            own = own if np.isnan(epsilon) else own[own["epsilon"] == epsilon]
            if len(own):
                rows.append({"epsilon": epsilon, "optimizer": optimizer} | _summary(own))
    # With one epsilon, the rows over all would say the same again.
    table = pd.DataFrame(rows)
    return table.dropna(subset="epsilon") if gains["epsilon"].nunique() == 1 else table


def _summary(own: pd.DataFrame) -> dict[str, float]:
    settings = [_estimates(group, "seed") for _, group in own.groupby(SETTING, sort=False)]
    elsewhere = _estimate(own, "gain", "problem_name")
    return {
        "settings": len(settings),
        **_estimates(own, "seed"),
        "lower_elsewhere": elsewhere.lower,
        "upper_elsewhere": elsewhere.upper,
        "problems": own["problem_name"].nunique(),
        "better": sum(each["lower"] > 0 for each in settings),
        "worse": sum(each["upper"] < 0 for each in settings),
    }


def _estimates(rows: pd.DataFrame, unit: str) -> dict[str, float]:
    """Gains with intervals over the units, in points."""
    found: dict[str, float] = {}
    for column, prefix in OVER.items():
        estimate = _estimate(rows, column, unit)
        found |= {
            f"{prefix}gain": estimate.value,
            f"{prefix}lower": estimate.lower,
            f"{prefix}upper": estimate.upper,
        }
    return found


def _estimate(rows: pd.DataFrame, column: str, unit: str) -> Estimate:
    """The mean over the settings of a column in points, with an interval over the units."""
    known = rows.dropna(subset=column).assign(problem=lambda some: some[unit])

    def mean(some: pd.DataFrame) -> float:
        return 100 * float(some.groupby(SETTING)[column].mean().mean())

    return jackknife(known, mean)
