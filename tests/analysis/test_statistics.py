import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from dpsweep.analysis.statistics import (
    class_order,
    first_best,
    jackknife,
    log_density,
    retained_weight,
    running_mean,
    share_error,
)

nan = math.nan


def test_retained_weight_by_hand() -> None:
    # Class 0: norms 1 and 4 at C = 2 have weights 1 and 1/2. Class 1: norm 8 has 1/4. Class 2: no example.
    # Class 3: a zero gradient has weight 1, norms that are not finite are left out.
    norms, labels = [1.0, 4.0, 8.0, 0.0, 8.0, nan, math.inf], [0, 0, 1, 3, 3, 3, 3]
    weights = retained_weight(norms, labels, bound=2.0, classes=4)
    np.testing.assert_allclose(weights, [0.75, 0.25, nan, (1 + 0.25) / 2])


def test_classes_are_sorted_from_easy_to_hard_with_nan_last() -> None:
    assert class_order([0.5, 0.9, nan, 0.5, 0.7]).tolist() == [1, 4, 0, 3, 2]


def test_the_best_ignores_nan_and_is_the_first_on_ties() -> None:
    assert first_best(pd.Series([nan, 0.3, 0.1, 0.3])).tolist() == [False, True, False, False]
    assert not first_best(pd.Series([nan, nan])).any()
    assert first_best(pd.Series([], dtype=object)).empty


def test_running_mean_by_hand() -> None:
    values = [1.0, 2.0, 6.0, nan, 4.0]
    np.testing.assert_allclose(running_mean(values, 3), [1.5, 3.0, 4.0, 5.0, 4.0])
    np.testing.assert_allclose(running_mean(values, 1), values)
    np.testing.assert_allclose(running_mean([1.0, 3.0], 5), [2.0, 2.0])
    with pytest.raises(ValueError, match="odd"):
        running_mean(values, 2)


GRID = np.round(np.arange(-6, 6.01, 0.02), 2)


@pytest.mark.parametrize("spread", [0.3, 1.0])
def test_the_bandwidth_of_a_log_density_is_silvermans(spread: float) -> None:
    """Every norm adds a normal curve of this width; two far norms raise the std above the quartiles."""
    logs = np.random.default_rng(2).normal(0, spread, 60)
    for each in (logs, np.append(logs, [2.5, 3.0])):
        lower, upper = np.quantile(each, [0.25, 0.75])
        bandwidth = 0.9 * min(each.std(), (upper - lower) / 1.34) * len(each) ** -0.2
        expected = stats.norm.pdf(GRID[:, None], each, bandwidth).mean(axis=1)
        found = log_density(10**each, GRID)
        assert np.abs(found - expected).max() < 0.02 * expected.max()


# -- intervals of counts -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("right", "count"),
    [(0, 200), (1, 200), (7, 200), (150, 200), (199, 200), (200, 200), (0, 1), (1, 1), (1, 2)],
)
def test_the_error_of_a_share_is_the_farther_end_of_its_wilson_interval(
    right: int, count: int
) -> None:
    share, quantile = right / count, stats.norm.ppf(0.975)
    interval = stats.binomtest(right, count).proportion_ci(method="wilson")
    farther = max(interval.high - share, share - interval.low)
    assert share_error(share, count) * quantile == pytest.approx(farther)
    assert share_error(share, math.inf) == 0
    # Without an example, the share may be anything between 0 and 1.
    assert share_error(share, 0) * quantile == pytest.approx(max(share, 1 - share))


# -- intervals over problems ---------------------------------------------------------------


def mean(rows: pd.DataFrame) -> float:
    return float(rows["x"].mean())


def trials(values: dict[str, list[float]]) -> pd.DataFrame:
    return pd.DataFrame(
        [{"problem": name, "x": x} for name, found in values.items() for x in found]
    )


def test_the_interval_of_a_mean_is_the_t_interval_of_the_problem_means() -> None:
    random = np.random.default_rng(0)
    values = {name: random.normal(size=4).tolist() for name in "abcde"}
    means = [np.mean(found) for found in values.values()]
    wanted = stats.t.interval(0.95, 4, loc=np.mean(means), scale=stats.sem(means))
    found = jackknife(trials(values), mean)
    assert found == pytest.approx((np.mean(means), *wanted))


def test_a_single_problem_or_an_undefined_statistic_has_no_interval() -> None:
    alone = jackknife(trials({"a": [0.1, 0.3]}), mean)
    assert alone.value == pytest.approx(0.2)
    assert np.isnan([alone.lower, alone.upper]).all()
    broken = jackknife(trials({"a": [0.1], "b": [0.2], "c": [0.2]}), _several)
    assert np.isfinite(broken.value)
    assert np.isnan([broken.lower, broken.upper]).all()
    # Problems that agree exactly do not tell how far problems scatter.
    alike = jackknife(trials({"a": [0.1, 0.3], "b": [0.2], "c": [0.2, 0.2]}), mean)
    assert alike.value == pytest.approx(0.2)
    assert np.isnan([alike.lower, alike.upper]).all()
    assert np.isnan(jackknife(trials({}).reindex(columns=["problem", "x"]), mean).value)


def _several(rows: pd.DataFrame) -> float:
    return 1.0 if rows["x"].nunique() > 1 else np.nan


def test_a_density_counts_norms_in_the_last_bin() -> None:
    grid = np.linspace(0, 1, 11)
    for place in (-0.04, 1.04):  # half of a bin beyond the ends of the grid
        density = log_density(np.full(5, 10**place), grid)
        assert np.nanargmax(density) == (10 if place > 0 else 0) and density.max() > 0
