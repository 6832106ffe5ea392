"""95% intervals of statistics of trials, by leaving out one problem after another.

Trials of one problem (a dataset, a backbone, a method and an optimizer) share data and network at every
epsilon and batch size, so they are not independent evidence. Problems are the units: the statistic is
computed again without each of them (the jackknife; Efron and Stein 1981), and Student's t with one degree
less than there are problems makes an interval of how far these values lie apart. For the mean of problems
with as many trials each it is the usual t interval of their means.

The interval is about problems like these. Problems that share a dataset are not independent either, so it
says nothing about other datasets.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import t as student

LEVEL = 0.05


class Estimate(NamedTuple):
    """A statistic with a 95% interval; all are NaN where the statistic is not defined."""

    value: float
    lower: float
    upper: float
    """NaN, as `lower`, with one problem, or where the statistic is not defined without one of them"""

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval lies on one side of 0."""
        return self.lower > 0 or self.upper < 0


def jackknife(rows: pd.DataFrame, statistic: Callable[[pd.DataFrame], float]) -> Estimate:
    """Return a statistic and its interval.

    Args:
        rows: any number for each ``problem``.
        statistic: of such rows; NaN where it is not defined.
    """
    value = float(statistic(rows)) if len(rows) else np.nan
    units = rows["problem"].unique()
    if len(units) < 2:
        return Estimate(value, np.nan, np.nan)
    without = np.array([statistic(rows[rows["problem"] != each]) for each in units])
    count = len(units)
    error = np.sqrt((count - 1) / count * ((without - without.mean()) ** 2).sum())
    reach = float(student.ppf(1 - LEVEL / 2, count - 1) * error)
    return Estimate(value, value - reach, value + reach)
