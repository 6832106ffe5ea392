"""What the tables of the findings share: names of settings, and what a value of C or B costs."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import t as student

Row = dict[str, Any]


def points(value: float) -> str:
    """A difference of accuracies, in percentage points."""
    return f"{100 * value:+.1f}".replace("-", "−")


def problem_name(row: Row, titles: dict[str, str]) -> str:
    """The dataset, network and epochs of a row."""
    return f"{titles[row['dataset']]}, {titles[row['backbone']]}, {row['epochs']} epochs"


def by_problem(rows: Sequence[Row], titles: dict[str, str]) -> dict[str, list[Row]]:
    """The rows of every dataset, network and number of epochs."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(problem_name(row, titles), []).append(row)
    return found


def points_lost(row: Row, position: int) -> float:
    """Points that a value of an axis lies below the best one."""
    return 100 * float(max(row["accuracy"]) - row["accuracy"][position])


def relative(rows: Sequence[Row], position: int) -> str:
    """What a value of an axis costs in the mean, in percent of the best accuracy of each setting."""
    shares = [points_lost(row, position) / max(row["accuracy"]) for row in rows]
    return f"{np.mean(shares):.0f} %"


def mean_over_problems(rows: Sequence[Row], values: Sequence[float]) -> str:
    """The mean of values, with its 95 % t interval over problems (dataset and network).

    Settings of a problem share data, network and test set, so the problems are the units.
    """
    units: dict[tuple[str, str], list[float]] = {}
    for row, value in zip(rows, values, strict=True):
        units.setdefault((row["dataset"], row["backbone"]), []).append(value)
    means = [float(np.mean(each)) for each in units.values()]
    found = f"{np.mean(means):+.1f}"
    if len(means) < 3:
        return f"{found} in the mean of {len(means)} problems, too few for an interval".replace(
            "-", "−"
        )
    reach = student.ppf(0.975, len(means) - 1) * np.std(means, ddof=1) / np.sqrt(len(means))
    low, high = np.mean(means) - reach, np.mean(means) + reach
    return f"{found} [{low:+.1f}, {high:+.1f}] over {len(means)} problems".replace("-", "−")
