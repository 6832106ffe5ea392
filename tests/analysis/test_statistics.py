"""Statistics by hand, grids of trials, the scatter of seeds, and the cells that are as good as the best."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from tests.synthetic import make_study, write_cells

from dpsweep.analysis import statistics
from dpsweep.analysis.frames import load_trials
from dpsweep.analysis.statistics import (
    Scatter,
    alike,
    as_good_as_best,
    best,
    grids,
    without_diverged,
)
from dpsweep.study import Cell
from dpsweep.study.choice import repeats, summarise
from dpsweep.study.paths import Paths

nan = math.nan


def test_retained_weight_by_hand() -> None:
    # Class 0: norms 1 and 4 at C = 2 have weights 1 and 1/2. Class 1: norm 8 has 1/4. Class 2: no example.
    # Class 3: a zero gradient has weight 1, norms that are not finite are left out.
    norms, labels = [1.0, 4.0, 8.0, 0.0, 8.0, nan, math.inf], [0, 0, 1, 3, 3, 3, 3]
    weights = statistics.retained_weight(norms, labels, bound=2.0, classes=4)
    np.testing.assert_allclose(weights, [0.75, 0.25, nan, (1 + 0.25) / 2])


def test_classes_are_sorted_from_easy_to_hard_with_nan_last() -> None:
    assert statistics.class_order([0.5, 0.9, nan, 0.5, 0.7]).tolist() == [1, 4, 0, 3, 2]


def test_the_best_ignores_nan_and_is_the_first_on_ties() -> None:
    found = statistics.first_best(pd.Series([nan, 0.3, 0.1, 0.3]))
    assert found.tolist() == [False, True, False, False]
    assert not statistics.first_best(pd.Series([nan, nan])).any()
    assert statistics.first_best(pd.Series([], dtype=object)).empty


def test_running_mean_by_hand() -> None:
    values = [1.0, 2.0, 6.0, nan, 4.0]
    np.testing.assert_allclose(statistics.running_mean(values, 3), [1.5, 3.0, 4.0, 5.0, 4.0])
    np.testing.assert_allclose(statistics.running_mean(values, 1), values)
    np.testing.assert_allclose(statistics.running_mean([1.0, 3.0], 5), [2.0, 2.0])


GRID = np.round(np.arange(-6, 6.01, 0.02), 2)


@pytest.mark.parametrize("spread", [0.3, 1.0])
def test_the_bandwidth_of_a_log_density_is_silvermans(spread: float) -> None:
    """Every norm adds a normal curve of this width; two far norms raise the std above the quartiles."""
    logs = np.random.default_rng(2).normal(0, spread, 60)
    for each in (logs, np.append(logs, [2.5, 3.0])):
        lower, upper = np.quantile(each, [0.25, 0.75])
        bandwidth = 0.9 * min(each.std(), (upper - lower) / 1.34) * len(each) ** -0.2
        expected = stats.norm.pdf(GRID[:, None], each, bandwidth).mean(axis=1)
        found = statistics.log_density(10**each, GRID)
        assert np.abs(found - expected).max() < 0.02 * expected.max()


def test_a_density_counts_norms_in_the_last_bin() -> None:
    grid = np.linspace(0, 1, 11)
    for place in (-0.04, 1.04):  # half of a bin beyond the ends of the grid
        density = statistics.log_density(np.full(5, 10**place), grid)
        assert np.nanargmax(density) == (10 if place > 0 else 0) and density.max() > 0


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
    assert statistics.share_error(share, count) * quantile == pytest.approx(farther)
    assert statistics.share_error(share, math.inf) == 0
    # Without an example, the share may be anything between 0 and 1.
    assert statistics.share_error(share, 0) * quantile == pytest.approx(max(share, 1 - share))


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
    found = statistics.jackknife(trials(values), mean)
    assert found == pytest.approx((np.mean(means), *wanted))


def test_a_single_problem_or_an_undefined_statistic_has_no_interval() -> None:
    alone = statistics.jackknife(trials({"a": [0.1, 0.3]}), mean)
    assert alone.value == pytest.approx(0.2)
    assert np.isnan([alone.lower, alone.upper]).all()
    broken = statistics.jackknife(
        trials({"a": [0.1], "b": [0.2], "c": [0.2]}),
        lambda rows: 1.0 if rows["x"].nunique() > 1 else nan,
    )
    assert np.isfinite(broken.value)
    assert np.isnan([broken.lower, broken.upper]).all()
    # Problems that agree exactly do not tell how far problems scatter.
    alike = statistics.jackknife(trials({"a": [0.1, 0.3], "b": [0.2], "c": [0.2, 0.2]}), mean)
    assert alike.value == pytest.approx(0.2)
    assert np.isnan([alike.lower, alike.upper]).all()
    assert np.isnan(statistics.jackknife(trials({}).reindex(columns=["problem", "x"]), mean).value)


# -- the scatter of seeds -------------------------------------------------------------------

# Standard deviations 0.01, 0.005 and 0.01; the better half are the first two.
CELLS = {"high": [0.80, 0.81, 0.82], "near": [0.80, 0.805, 0.81], "low": [0.70, 0.71, 0.72]}


def seeds(cells: Mapping[str, Sequence[float]], epsilon: float = 8.0) -> pd.DataFrame:
    """Return a row per seed of every cell, and a row of the first seed at a worse learning rate."""
    rows = [
        {"cell": name, "seed": seed, "selection_accuracy": accuracy, "best": True}
        for name, seeds in cells.items()
        for seed, accuracy in enumerate(seeds, start=1)
    ]
    rows += [{"cell": name, "seed": 1, "selection_accuracy": 0.0, "best": False} for name in cells]
    frame = pd.DataFrame(rows).assign(problem="p", epsilon=epsilon, diverged=False)
    return frame.assign(
        macro_accuracy=frame["selection_accuracy"],
        trial_key=[f"{epsilon:g}/{number}" for number in range(len(frame))],
    )


def as_good(cells: Mapping[str, Sequence[float]]) -> list[str]:
    """Return the names of the cells that are as good as the best."""
    found = seeds(cells)
    summary = summarise(found)
    return list(summary.loc[as_good_as_best(summary, found), "cell"])


def scatter_of(*rows: pd.DataFrame) -> tuple[int, float]:
    """Return the degrees of freedom and the variance."""
    found = Scatter.of(repeats(pd.concat(rows)), "selection_accuracy")
    assert found is not None
    return found.freedom, found.deviation**2


def test_the_scatter_is_pooled_over_the_better_half_of_each_grid() -> None:
    one, other = seeds(CELLS, epsilon=8.0), seeds({"alone": [0.5, 0.7]}, epsilon=1.0)
    # Two cells give four degrees of freedom; the cell at the other epsilon gives one.
    variance = (2 * 0.01**2 + 2 * 0.005**2 + 0.02) / 5
    assert scatter_of(one, other) == (5, pytest.approx(variance))
    # Only seeds that all cells with several seeds share are used.
    more = CELLS | {"high": [*CELLS["high"], 0.99], "single": [0.2]}
    assert scatter_of(seeds(more)) == (4, pytest.approx((0.01**2 + 0.005**2) / 2))


def test_cells_within_the_scatter_are_as_good_as_the_best() -> None:
    assert as_good(CELLS) == ["high", "near"]
    assert as_good({"high": [0.9], "low": [0.1]}) == []  # one seed has no scatter
    # Seeds that agree exactly do not tell how far seeds scatter.
    assert as_good({"high": [0.9, 0.9], "near": [0.899, 0.899]}) == []
    deviation = math.sqrt((0.01**2 + 0.005**2) / 2)
    # Student's quantile, for two comparisons.
    visible = stats.t.ppf(1 - 0.05 / 2, 4) * deviation * math.sqrt(2 / 3)
    assert Scatter(deviation, 4).visible(seeds=3, comparisons=2) == pytest.approx(visible)
    for beyond, expected in ((-1e-4, ["high", "near"]), (1e-4, ["high"])):
        moved = [0.81 - visible - beyond + each for each in (-0.005, 0, 0.005)]
        assert as_good(CELLS | {"near": moved}) == expected


def test_diverged_seeds_are_not_as_good_and_hide_no_difference() -> None:
    crashed = CELLS | {"crash": [0.82, 0.83, 0.1], "gone": [math.nan] * 3}
    assert as_good(crashed) == ["high", "near"]


# -- grids of trials ---------------------------------------------------------------------


def trained(tmp_path: Path, sweeps: dict[str, dict[str, Any]], outcome: Any) -> pd.DataFrame:
    study, paths = make_study(sweeps), Paths(tmp_path)
    write_cells(study, paths, outcome)
    return load_trials(
        study, paths, [cell for name in study.sweeps for cell in study.sweep_cells(name)]
    )


def number(cell: Cell, rate: float, seed: int) -> dict[str, Any]:
    size = 1000 if cell.batch_size == "full" else cell.batch_size
    bound = 0 if isinstance(cell.clipping_bound, str) else cell.clipping_bound
    value = size + bound + seed / 10
    return {"macro_accuracy": value, "selection_accuracy": -value}


def test_grids_contain_each_repeat_at_its_position(tmp_path: Path) -> None:
    sweep = {"batch_size": [100, "full"], "clipping_bound": [1.0, 2.0, 4.0], "seeds": 2}
    (found,) = grids(trained(tmp_path, {"s": sweep}, number))
    assert (found.batch_size, found.clipping_bound) == ((100, 1000), (1.0, 2.0, 4.0))
    expected = np.array(
        [[[b + c + s / 10 for s in (1, 2)] for c in (1, 2, 4)] for b in (100, 1000)]
    )
    np.testing.assert_allclose(found.accuracy, expected)
    np.testing.assert_allclose(found.selection, -expected)
    assert found.choice() == (0, 0)
    assert found.reached == 101.15
    # Learning rates of the first seed.
    np.testing.assert_allclose(found.tuning, -expected[..., :1])


def test_cells_that_two_sweeps_share_are_one_grid(tmp_path: Path) -> None:
    sweeps: dict[str, dict[str, Any]] = {
        "wide": {"clipping_bound": [1.0, 2.0, 4.0], "epsilon": [8.0]},
        "long": {"clipping_bound": [1.0, 2.0], "epsilon": [1.0, 8.0]},
        # These two have no grid.
        "auto": {"clipping_bound": "automatic", "batch_size": [100, 200]},
        "free": {"clipping_bound": "none", "epsilon": [math.inf]},
    }
    rows = trained(tmp_path, sweeps, number)
    found = {grid.epsilon: grid for grid in grids(rows, {str(rows["dataset"].iloc[0]): 450})}
    assert {epsilon: grid.clipping_bound for epsilon, grid in found.items()} == {
        8.0: (1.0, 2.0, 4.0),
        1.0: (1.0, 2.0),
    }
    assert [each.test_size for each in (found[8.0], *grids(rows))] == [450, math.inf, math.inf]
    assert len(alike(found.values(), "epsilon")) == 1
    nothing = rows.assign(macro_accuracy=math.nan, selection_accuracy=math.nan)
    assert grids(nothing) == grids(nothing.iloc[:0]) == []


def test_a_missing_cell_is_nan_and_never_chosen(tmp_path: Path) -> None:
    sweep = {"batch_size": [100, 200], "clipping_bound": [1.0, 2.0], "seeds": 2}
    rows = trained(tmp_path, {"s": sweep}, number)
    (whole,) = grids(rows)
    assert whole.choice() == (0, 0)
    (found,) = grids(rows[rows["cell"] != "eps8_epochs2_B100_C1"])
    assert np.isnan(found.accuracy).sum() == 2
    assert found.choice() == (0, 1)
    assert found.complete("batch_size") == {200}
    assert found.complete("clipping_bound") == {2.0}


def test_ties_go_to_the_smallest_batch_size_then_bound() -> None:
    accuracy = np.array([[0.1, 0.5, 0.5], [0.5, 0.2, np.nan]])
    assert best(accuracy) == (0, 1)
    np.testing.assert_array_equal(best(np.stack([accuracy, -accuracy])), [[0, 0], [1, 0]])


def test_a_diverged_seed_is_replaced_by_the_mean_of_the_others() -> None:
    accuracy = np.full((3, 3, 4), 0.8) + np.arange(4) / 1000
    accuracy[1, 2, 3] = 0.02
    found = without_diverged(accuracy)
    assert found[1, 2, 3] == pytest.approx(0.801)
    accuracy[1, 2, 3] = found[1, 2, 3]
    np.testing.assert_array_equal(found, accuracy)
    # If all seeds scatter that much, none counts as diverged.
    noisy = np.random.default_rng(0).normal(0.5, 0.05, (4, 4, 5))
    assert without_diverged(noisy) is noisy
