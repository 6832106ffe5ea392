"""The scatter of seeds, and the cells that are as good as the best."""

import math
from collections.abc import Mapping, Sequence

import pandas as pd
import pytest
from scipy.stats import t as student

from dpsweep.analysis.statistics import Scatter, as_good_as_best
from dpsweep.study.choice import repeats, summarise

# Standard deviations 0.01, 0.005 and 0.01; the better half are the first two.
CELLS = {"high": [0.80, 0.81, 0.82], "near": [0.80, 0.805, 0.81], "low": [0.70, 0.71, 0.72]}


def trials(cells: Mapping[str, Sequence[float]], epsilon: float = 8.0) -> pd.DataFrame:
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
    found = trials(cells)
    summary = summarise(found)
    return list(summary.loc[as_good_as_best(summary, found), "cell"])


def scatter_of(*rows: pd.DataFrame) -> tuple[int, float]:
    """Return the degrees of freedom and the variance."""
    found = Scatter.of(repeats(pd.concat(rows)), "selection_accuracy")
    assert found is not None
    return found.freedom, found.deviation**2


def test_the_scatter_is_pooled_over_the_better_half_of_each_grid() -> None:
    one, other = trials(CELLS, epsilon=8.0), trials({"alone": [0.5, 0.7]}, epsilon=1.0)
    # Two cells give four degrees of freedom; the cell at the other epsilon gives one.
    variance = (2 * 0.01**2 + 2 * 0.005**2 + 0.02) / 5
    assert scatter_of(one, other) == (5, pytest.approx(variance))
    # Only seeds that all cells with several seeds share are used.
    more = CELLS | {"high": [*CELLS["high"], 0.99], "single": [0.2]}
    assert scatter_of(trials(more)) == (4, pytest.approx((0.01**2 + 0.005**2) / 2))


def test_cells_within_the_scatter_are_as_good_as_the_best() -> None:
    assert as_good(CELLS) == ["high", "near"]
    assert as_good({"high": [0.9], "low": [0.1]}) == []  # one seed has no scatter
    # Seeds that agree exactly do not tell how far seeds scatter.
    assert as_good({"high": [0.9, 0.9], "near": [0.899, 0.899]}) == []
    deviation = math.sqrt((0.01**2 + 0.005**2) / 2)
    # Student's quantile, for two comparisons.
    visible = student.ppf(1 - 0.05 / 2, 4) * deviation * math.sqrt(2 / 3)
    assert Scatter(deviation, 4).visible(seeds=3, comparisons=2) == pytest.approx(visible)
    for beyond, expected in ((-1e-4, ["high", "near"]), (1e-4, ["high"])):
        moved = [0.81 - visible - beyond + each for each in (-0.005, 0, 0.005)]
        assert as_good(CELLS | {"near": moved}) == expected


def test_diverged_seeds_are_not_as_good_and_hide_no_difference() -> None:
    crashed = CELLS | {"crash": [0.82, 0.83, 0.1], "gone": [math.nan] * 3}
    assert as_good(crashed) == ["high", "near"]
