"""The figure of docs/price.md shows the committed numbers."""

import math

import pandas as pd
from benchmarks.evidence import price


def test_the_numbers_beside_the_figure_are_those_of_the_pieces() -> None:
    written = pd.read_csv(price.IMAGE.with_suffix(".csv"))
    pd.testing.assert_frame_equal(written, price.numbers().round(3), check_dtype=False)


def test_what_is_not_accounted_for_is_an_optimum_of_its_own_repetition() -> None:
    """The best on the test set is at least as good as its setting with other randomness, in the mean."""
    for each in (each for each in price.pieces() if each["arm"] == price.BEST):
        assert sum(each["accuracy"]) >= sum(each["again"])


def test_tuning_leaves_less_for_a_trial() -> None:
    for each in (each for each in price.pieces() if "refused" not in each):
        tuned = each["arm"].startswith("accounted")
        assert len(each["accuracy"]) == each["repetitions"] >= 10
        assert (each["base_epsilon"] < each["epsilon"]) == tuned
        if not tuned:
            assert math.isclose(each["base_epsilon"], each["epsilon"])
