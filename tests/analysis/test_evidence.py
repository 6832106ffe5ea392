import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from dpsweep.analysis.evidence import (
    COLUMNS,
    FEWEST_COMPARISONS,
    FEWEST_DATASETS,
    compare,
    evidence,
    groups_of_datasets,
    holm,
    interval_elsewhere,
    interval_here,
    mean_effect,
    verdict,
)
from dpsweep.analysis.rules import RULES

RULE = "lower_epsilon_larger_bound"


def comparisons(effects: dict[str, list[float]], rule: str = RULE) -> pd.DataFrame:
    """Comparisons of one rule; effects by dataset, or by datasets that are compared ("a, b")."""
    rows = [
        {"rule": rule, "dataset": dataset, "effect": effect}
        for dataset, values in effects.items()
        for effect in values
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def row_of(found: pd.DataFrame, rule: str = RULE) -> pd.Series:
    return found.set_index("rule").loc[rule]


# -- intervals -----------------------------------------------------------------------------


def test_datasets_are_the_units_elsewhere() -> None:
    effects, groups = np.array([1.0, 2.0, 3.0, 0.0, 4.0, 4.0]), [0, 0, 0, 1, 2, 2]
    by_hand = stats.ttest_1samp([2.0, 0.0, 4.0], 0)
    found = interval_elsewhere(effects, groups)
    assert (found.lower, found.upper) == pytest.approx(tuple(by_hand.confidence_interval()))
    assert found.p_value == pytest.approx(by_hand.pvalue)
    assert mean_effect(effects, groups) == 2.0  # not 14 / 6: a dataset counts once


def test_comparisons_are_the_units_here() -> None:
    # With one dataset this is the t interval; with several, datasets may differ.
    one = np.array([1.0, 2.0, 4.0])
    by_hand = stats.ttest_1samp(one, 0)
    found = interval_here(one, [0, 0, 0])
    assert (found.lower, found.upper) == pytest.approx(tuple(by_hand.confidence_interval()))
    assert found.p_value == pytest.approx(by_hand.pvalue)
    far_apart = interval_here(np.array([1.0, 2.0, 4.0, 101.0, 102.0, 104.0]), [0, 0, 0, 1, 1, 1])
    assert far_apart.upper - far_apart.lower < 5


def test_many_studies_at_once() -> None:
    effects, groups = np.random.default_rng(0).normal(0, 1, (5, 6)), [0, 1, 1, 2, 2, 2]
    for interval in (interval_here, interval_elsewhere):
        together = interval(effects, groups)
        alone = [interval(each, groups) for each in effects]
        for index, each in enumerate(together):
            np.testing.assert_allclose(each, [one[index] for one in alone])


def test_nothing_is_known_without_replication() -> None:
    for interval in (
        interval_here(np.array([1.0, 2.0]), [0, 1]),
        interval_elsewhere(np.array([1.0, 2.0]), [0, 0]),
    ):
        assert np.isnan(list(map(float, interval))).all()


def test_groups_are_what_nothing_links() -> None:
    assert groups_of_datasets([["a"], ["b"], ["a"]], []) == [0, 1, 0]
    assert groups_of_datasets([["a"], ["b"], ["c"]], [("c", "a"), ("x", "y")]) == [0, 1, 0]
    assert groups_of_datasets([["a", "b"], ["c", "d"], ["b", "d"]], []) == [0, 0, 0]
    assert groups_of_datasets([], [("a", "b")]) == []


def test_holm_by_hand() -> None:
    # 0.01 times 3; 0.03 times 2; 0.04 times 1 would be smaller than the one before.
    corrected = holm(np.array([0.04, math.nan, 0.01, 0.03]))
    np.testing.assert_allclose(corrected, [0.06, math.nan, 0.03, 0.06])
    assert holm(np.array([0.7, 0.8])).tolist() == [1.0, 1.0]
    assert holm(np.array([math.nan])).tolist() == pytest.approx([math.nan], nan_ok=True)


# -- verdicts ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("effect", "here", "elsewhere", "expected"),
    [
        (0.1, 0.04, 0.04, "supported"),
        (0.1, 0.04, 0.06, "supported here"),
        (0.1, 0.06, 0.06, "not resolved"),
        (0.1, 0.04, math.nan, "supported here"),
        (-0.1, 0.04, 0.04, "contradicted"),
        (-0.1, 0.04, math.nan, "contradicted here"),
        (math.nan, math.nan, math.nan, "not resolved"),
    ],
)
def test_verdicts(effect: float, here: float, elsewhere: float, expected: str) -> None:
    assert verdict(effect, here, elsewhere) == expected


def test_a_rule_that_holds_on_every_dataset_is_supported() -> None:
    row = row_of(evidence(comparisons({"a": [0.9, 1.1], "b": [1.0, 1.2], "c": [0.8, 1.0]})))
    assert row["effect"] == pytest.approx(1.0)
    assert (row["comparisons"], row["in_favour"], row["against"]) == (6, 6, 0)
    assert row["groups_of_datasets"] == 3
    assert row["verdict"] == "supported"
    assert row["lower_elsewhere"] < row["lower_here"] < 1.0 < row["upper_here"]


def test_datasets_that_share_examples_are_no_other_datasets() -> None:
    found = comparisons({"a": [0.9, 1.1], "half": [1.0, 1.2], "tenth": [0.8, 1.0]})
    row = row_of(evidence(found, related=[("a", "half"), ("a", "tenth")]))
    assert row["groups_of_datasets"] == 1
    assert np.isnan(row["p_elsewhere"])
    assert row["verdict"] == "supported here"


def test_datasets_that_disagree_do_not_settle_others() -> None:
    agreeing = comparisons({"a": [1.0, 1.1, 0.9], "b": [0.1, 0.0, 0.2], "c": [2.0, 2.1, 1.9]})
    row = row_of(evidence(agreeing))
    assert row["lower_elsewhere"] < 0 < row["lower_here"]
    assert row["verdict"] == "supported here"


def test_too_few_comparisons_or_datasets_are_no_verdict() -> None:
    few = comparisons({"a": [1.0, 1.1], "b": [1.0], "c": [0.9, 1.0]})
    assert len(few) == FEWEST_COMPARISONS - 1
    row = row_of(evidence(few))
    assert row["effect"] == pytest.approx((1.05 + 1.0 + 0.95) / 3)
    assert np.isnan(row["lower_here"])
    assert row["verdict"] == "not resolved"
    two = comparisons({"a": [1.0, 1.1, 0.9], "b": [1.0, 1.1, 0.9]})
    assert np.isnan(row_of(evidence(two))["lower_elsewhere"])
    assert FEWEST_DATASETS == 3


def test_verdicts_are_corrected_for_their_number() -> None:
    # Taken alone, each rule has p = 0.02. Nine of them are allowed 0.05 together.
    effects = np.array([-1.0, 0.0, 1.0, 0.5, -0.5, 0.2])
    reach = stats.t.ppf(0.99, 5) * effects.std(ddof=1) / np.sqrt(6)
    shifted = {"a": list(effects - effects.mean() + reach)}
    alone = row_of(evidence(comparisons(shifted)))
    assert alone["p_here"] == pytest.approx(0.02)
    assert alone["verdict"] == "supported here"
    together = evidence(pd.concat([comparisons(shifted, rule.key) for rule in RULES]))
    assert set(together["corrected_p_here"].round(6)) == {0.18}
    assert set(together["verdict"]) == {"not resolved"}


def test_an_effect_that_is_not_known_does_not_count() -> None:
    row = row_of(evidence(comparisons({"a": [1.0, math.nan, 1.2], "b": [math.nan]})))
    assert (row["comparisons"], row["groups_of_datasets"]) == (2, 1)
    assert row["effect"] == pytest.approx(1.1)


def test_without_comparisons_every_rule_is_open() -> None:
    found = evidence(compare([]))
    assert list(found["rule"]) == [rule.key for rule in RULES]
    assert set(found["verdict"]) == {"not resolved"}
    assert found["comparisons"].sum() == 0
