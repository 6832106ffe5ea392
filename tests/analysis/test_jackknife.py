"""Intervals over problems."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from dpsweep.analysis.statistics import jackknife


def mean(rows: pd.DataFrame) -> float:
    return float(rows["x"].mean())


def trials(values: dict[str, list[float]]) -> pd.DataFrame:
    return pd.DataFrame(
        [{"problem": name, "x": x} for name, found in values.items() for x in found]
    )


def test_of_a_mean_it_is_the_t_interval_of_the_problems_means() -> None:
    random = np.random.default_rng(0)
    values = {name: random.normal(size=4).tolist() for name in "abcde"}
    means = [np.mean(found) for found in values.values()]
    wanted = stats.t.interval(0.95, 4, loc=np.mean(means), scale=stats.sem(means))
    found = jackknife(trials(values), mean)
    assert found == pytest.approx((np.mean(means), *wanted))


def test_many_trials_of_a_problem_are_no_more_evidence() -> None:
    one = jackknife(trials({"a": [0.1], "b": [0.4], "c": [0.2]}), mean)
    many = jackknife(trials({"a": [0.1] * 9, "b": [0.4] * 9, "c": [0.2] * 9}), mean)
    assert many == pytest.approx(one)


def test_it_covers_the_truth_as_often_as_it_says() -> None:
    random = np.random.default_rng(1)
    covered = 0
    for _ in range(400):
        values = {
            f"{each}": (random.normal() + random.normal(size=6) / 3).tolist() for each in range(5)
        }
        found = jackknife(trials(values), mean)
        covered += found.lower <= 0 <= found.upper
    assert 0.92 < covered / 400 < 0.98


def test_without_other_problems_or_a_statistic_there_is_no_interval() -> None:
    alone = jackknife(trials({"a": [0.1, 0.3]}), mean)
    assert alone.value == pytest.approx(0.2)
    assert np.isnan([alone.lower, alone.upper]).all()
    assert not alone.excludes_zero
    broken = jackknife(trials({"a": [0.1], "b": [0.2], "c": [0.2]}), _several)
    assert np.isfinite(broken.value)
    assert np.isnan([broken.lower, broken.upper]).all()
    assert np.isnan(jackknife(trials({}).reindex(columns=["problem", "x"]), mean).value)


def _several(rows: pd.DataFrame) -> float:
    return 1.0 if rows["x"].nunique() > 1 else np.nan


@pytest.mark.parametrize(("shift", "excluded"), [(0.0, False), (1.0, True), (-1.0, True)])
def test_zero_is_outside_where_problems_agree(shift: float, excluded: bool) -> None:
    values = {"a": [shift + 0.1], "b": [shift - 0.1], "c": [shift + 0.05], "d": [shift - 0.05]}
    assert jackknife(trials(values), mean).excludes_zero is excluded
