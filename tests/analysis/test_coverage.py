"""A small part of benchmarks/verdicts.py: intervals contain effects that are known."""

import numpy as np
import pytest
from benchmarks.verdicts import BASE, BOUNDS, HALVINGS, growth, rate_intervals, simulate

from dpsweep.analysis.grids import Grid
from dpsweep.analysis.rules import lower_epsilon_larger_bound


def test_what_is_simulated_is_measured_as_the_rule_does() -> None:
    _, accuracy = simulate(BASE, 3, np.random.default_rng(0))
    bounds = BOUNDS[BASE.clipping_bounds]
    fast = growth(accuracy.mean(axis=-1), bounds)[2, 1, 0]
    grids = [
        Grid(
            "d",
            "b",
            "m",
            "adam",
            8 / 2**halving,
            8,
            tuple(range(1, 8)),
            tuple(10**bounds),
            one,
            one,
        )
        for halving, one in zip(HALVINGS, accuracy[2, 1, 0], strict=True)
    ]
    (found,) = lower_epsilon_larger_bound(grids)
    assert found.effect == pytest.approx(fast)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["location", "gain"])
def test_intervals_contain_known_effects(kind: str) -> None:
    found = {row["interval"]: row for row in rate_intervals(BASE, kind, studies=200, seed=1)}
    # Three standard errors of a share of 0.95 of 200 studies are 0.046.
    assert found["elsewhere: t over datasets"]["covers_elsewhere"] > 0.90
    assert found["here: t over comparisons"]["covers_here"] > 0.90
    assert found["bootstrap of datasets"]["covers_elsewhere"] < 0.90  # what an interval can miss
