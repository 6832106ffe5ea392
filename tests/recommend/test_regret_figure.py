"""How rules are judged: nothing measures itself, and the figure shows the committed result."""

import math

import numpy as np
import pandas as pd
import pytest
from benchmarks.evidence import recommend
from benchmarks.evidence.recommend import Problem


def trials() -> pd.DataFrame:
    """A problem of two B, two C and three rates: the first seed tunes the rate, two seeds repeat it."""
    rows = []
    for size, steps in ((64, 100), (256, 25)):
        for bound in (0.1, 1.0):
            for rate in (0.01, 0.02, 0.04):
                base = 0.5 + 0.1 * (size == 256) + 0.02 * (bound == 1.0) + rate
                best = rate == 0.04
                for seed, luck in ((1, 0.05 * best), (2, 0.0), (3, 0.01))[: 3 if best else 1]:
                    rows.append(
                        {"dataset": "pets-half", "backbone": "vit", "method": "film"}
                        | {"optimizer": "adam", "epsilon": 2.0, "epochs": 8, "train_size": 800}
                        | {"batch_size": size, "steps": steps, "clipping_bound": bound}
                        | {"learning_rate": rate, "seed": seed, "best": best}
                        | {"noise_multiplier": 1.0 if size == 64 else 2.0}
                        | {"macro_accuracy": base + luck, "selection_accuracy": base + luck}
                        | {"mean_gradient_norm": 9.0}
                    )
    return pd.DataFrame(rows)


def test_nothing_measures_itself() -> None:
    problem = Problem(trials(), norm=5.0)
    assert problem.source == "pets"
    # Cumulative noise is 10 for both: the smaller batch. The formula: C = 0.75, rate 1 / (5 * 10).
    assert problem.setting == pytest.approx((64, 0.75, 0.02))
    # The first seed measures a rule, which is its only one at this rate.
    assert problem.chosen([problem.setting]) == (pytest.approx(0.5 + 0.02 + 0.02), True)
    # The other seeds measure the search, which finds the larger B and C and the tuned rate.
    assert problem.searched() == pytest.approx(0.5 + 0.1 + 0.02 + 0.04 + 0.005)
    assert problem.searched(64, 0.1) == pytest.approx(0.5 + 0.04 + 0.005)
    # They measure a grid too where they repeat what its first seed chose.
    settings = [(64, 1.0, 0.02), (256, 1.0, 0.04)]
    assert problem.chosen(settings) == (pytest.approx(0.6 + 0.06 + 0.005), True)
    assert problem.chosen(settings[:1] * 2) == (pytest.approx(0.54), False)
    # The luckiest mean of all seeds is what a regret is measured against.
    assert problem.best == pytest.approx(0.6 + 0.06 + 0.06 / 3)


def test_means_count_each_source_the_same_and_have_the_interval_of_their_units() -> None:
    values = pd.Series([1.0, 3.0, 10.0, 12.0, 14.0])
    sources = pd.Series(["a", "a", "b", "b", "b"])
    mean, lower, upper = recommend.estimate(values, sources)
    assert mean == pytest.approx((2 + 12) / 2)
    # Of half the sum of two means with one variance, which has 3 degrees of freedom.
    error = math.sqrt((2 + 8) / 3 * (1 / 2 + 1 / 3)) / 2
    half = recommend.t.ppf(0.975, 3) * error
    assert (lower, upper) == pytest.approx((7 - half, 7 + half), abs=1e-3)


def test_an_exponent_is_that_of_the_power_law_it_is_fitted_to() -> None:
    steps = np.array([4, 16, 64, 9, 36, 100])
    frame = pd.DataFrame(
        {"dataset": ["a"] * 3 + ["b"] * 3, "backbone": "vit", "method": "head", "steps": steps}
    ).assign(learning_rate=np.where(np.arange(6) < 3, 1.0, 7.0) * steps**-0.5)
    slope, lower, upper, units = recommend.exponent(frame, "steps", ["dataset"])
    assert (slope, lower, upper) == pytest.approx((-0.5, -0.5, -0.5), abs=2e-3) and units == 2


def test_epochs_are_compared_with_a_quarter_of_them() -> None:
    rows = [{"accuracy": {1: 50.0, 4: 52.0, 16: 51.0}}, {"accuracy": {2: 9.0, 4: 10.0, 16: 14.0}}]
    assert recommend.gained(rows) == {"4": [2, 2, 2, 1], "16": [1.5, -1, 4, 2]}


def test_the_figure_shows_the_committed_result() -> None:
    written = pd.read_csv(recommend.IMAGE.with_suffix(".csv"))
    pd.testing.assert_frame_equal(written, recommend.regret_numbers(), check_dtype=False)
