"""How hyperparameters are chosen, and what is reported of the choice.

The rule is the paper's, in its cheapest form (``selection: repeat-best``): the *first seed* chooses,
by ``selection_accuracy``, which is the macro accuracy on the test set or on held-out training
examples (``select_on``); the centre and the band are over all repeats of what it chose.
The learning rate is chosen within a cell (column ``best``), every other free axis between cells.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pandas as pd

CELL = ["sweep", "cell"]
AXES = ["epsilon", "epochs", "batch_size", "clipping_bound"]
_CONSTANT = [
    "dataset", "backbone", "method", "optimizer", *AXES, "full_batch", "train_size", "steps",
    "clipping", "noise_multiplier", "learning_rate",
]  # fmt: skip

Centre = Literal["mean", "median"]


def repeats(trials: pd.DataFrame) -> pd.DataFrame:
    """The trials at each cell's best learning rate, seeds ascending within a cell."""
    best = trials[trials["best"].astype(bool)]
    order = best.groupby(CELL, sort=False).ngroup()
    return (
        best.assign(_cell=order).sort_values(["_cell", "seed"], kind="stable").drop(columns="_cell")
    )


def summarise(trials: pd.DataFrame, centre: Centre = "mean") -> pd.DataFrame:
    """One row per cell: its axes, its best learning rate, and the macro accuracy over repeats.

    Adds ``seed`` (the first one), ``first_seed`` (its selection accuracy: what is compared),
    ``centre``, ``minimum``, ``maximum``, ``repeats``, ``diverged`` (how many of them diverged) and
    ``trial_key`` (of the first seed).
    A repeat without an accuracy (NaN) makes the centre and the band NaN: the mean of four repeats
    out of five is not the mean of five.
    """
    cells = repeats(trials).groupby(CELL, sort=False)
    accuracy = cells["macro_accuracy"]
    over_repeats = pd.DataFrame(
        {
            "centre": accuracy.mean() if centre == "mean" else accuracy.median(),
            "minimum": accuracy.min(),
            "maximum": accuracy.max(),
        }
    )
    over_repeats[accuracy.count() < accuracy.size()] = np.nan
    over_repeats["repeats"] = accuracy.size()
    over_repeats["diverged"] = cells["diverged"].sum().astype(int)
    # head, not first: first would skip a NaN.
    first = cells.head(1)[[*CELL, *_CONSTANT, "seed", "selection_accuracy", "trial_key"]]
    first = first.rename(columns={"selection_accuracy": "first_seed"})
    return first.merge(over_repeats, left_on=CELL, right_index=True).reset_index(drop=True)


def tune(cells: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Of all cells that agree on ``by``, the one that the first seed finds best.

    Joint tuning: whatever is not in ``by`` competes. A cell without an accuracy (NaN) wins only
    against its like. Ties go to the smallest epsilon, then epochs, B, C: the cheapest to mend by
    hand and independent of the order of rows. Returns rows sorted by ``by``.
    """
    ranked = cells.sort_values(AXES, kind="stable").sort_values(
        "first_seed", ascending=False, kind="stable", na_position="last"
    )
    winners = ranked.groupby(list(by), sort=True, dropna=False).head(1)
    return winners.sort_values(list(by), kind="stable").reset_index(drop=True)


def best_batch_sizes(trials: pd.DataFrame) -> pd.DataFrame:
    """The best B of every (epsilon, epochs, seed), with C tuned for each.

    Every seed looks at its own trials at the cells' best learning rates, so the spread over seeds
    says how well the choice is determined. A missing accuracy never wins; ties go to the smaller B.
    """
    ranked = (
        repeats(trials)
        .dropna(subset=["selection_accuracy"])
        .sort_values(["batch_size", "clipping_bound"], kind="stable")
        .sort_values("selection_accuracy", ascending=False, kind="stable")
    )
    keys = ["epsilon", "epochs", "seed"]
    winners = ranked.groupby(keys, sort=False).head(1)
    return winners[[*keys, "batch_size"]].sort_values(keys).reset_index(drop=True)
