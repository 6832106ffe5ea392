"""Effects of each rule by hand, on grids with a known optimum; their means, intervals and verdicts."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from dpsweep.analysis import evidence
from dpsweep.analysis.evidence import RULES, Comparison, Mean, compare, evidence_table
from dpsweep.analysis.statistics import LEVEL, AccuracyGrid, share_error

RULE = "lower_epsilon_larger_bound"
(MARGIN,) = (rule.margin for rule in RULES if rule.key == RULE)


def comparison(
    datasets: str,
    effect: float | np.ndarray,
    noise: float = 0.0,
    unit: object = 0,
) -> Comparison:
    """Return a comparison with a known effect, in one dataset ("a") or between two ("a, b")."""
    nothing = np.zeros((1, 1, 2))
    grids = [
        AccuracyGrid(name, "small", "film", "adam", 1.0, 8, (1,), (1.0,), nothing, nothing, nothing)
        for name in datasets.split(", ")
    ]
    found = np.asarray(effect, dtype=float)
    return Comparison(
        grids, (datasets, str(unit)), ["C = 1"], found, np.full_like(found, noise),
        np.full_like(found, 0.0), "",
    )  # fmt: skip


def comparisons(effects: Mapping[str, Sequence[float]]) -> dict[str, list[Comparison]]:
    """Return comparisons with known effects by dataset; each is a separate unit."""
    return {
        RULE: [
            comparison(names, each, unit=unit)
            for names, values in effects.items()
            for unit, each in enumerate(values)
        ]
    }


def row_of(found: pd.DataFrame) -> pd.Series:
    return found.set_index("rule").loc[RULE]


def mean_of(effects: Sequence[float], groups: Sequence[int], test_error: float = 0.0) -> Mean:
    return evidence.mean_here(np.asarray(effects, dtype=float), groups, test_error)


# -- means and their errors ----------------------------------------------------------------


def test_intervals_are_those_of_student_and_welch() -> None:
    one, other = [1.0, 2.0, 4.0, 0.5], [101.0, 140.0, 104.0, 90.0]
    expected = stats.ttest_1samp(one, 0).confidence_interval()
    assert mean_of(one, [0] * 4).interval(0.05) == pytest.approx((expected.low, expected.high))
    # The mean of two datasets is half the difference between the first and the negated second.
    welch = stats.ttest_ind(one, np.negative(other), equal_var=False).confidence_interval()
    found = mean_of(one + other, [0] * 4 + [1] * 4).interval(0.05)
    assert found == pytest.approx((welch.low / 2, welch.high / 2))
    # For other datasets, datasets are the units: each counts once.
    effects, groups = np.array([1.0, 2.0, 3.0, 0.0, 4.0, 4.0]), [0, 0, 0, 1, 2, 2]
    expected = stats.ttest_1samp([2.0, 0.0, 4.0], 0).confidence_interval()
    elsewhere = evidence.mean_elsewhere(effects, groups)
    assert elsewhere.effect == 2.0  # not 14 / 6
    assert elsewhere.interval(0.05) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize(
    ("effects", "groups", "same"),
    [
        ([1.0, 5.0, 2.0, 2.5, 3.0], [0, 1, 2, 2, 2], [0, 0, 1, 1, 1]),
        # Also if there are two of them: the variance of a single unit is unknown.
        ([1.0, 5.0, 4.0, 2.0, 2.5, 3.0], [0, 1, 2, 3, 3, 3], [0, 0, 0, 1, 1, 1]),
        # A single one joins the smallest other group.
        ([9.0, 2.0, 3.0, 1.0, 1.5, 2.0], [0, 1, 1, 2, 2, 2], [1, 1, 1, 2, 2, 2]),
    ],
)
def test_datasets_with_one_unit_are_merged(
    effects: list[float], groups: list[int], same: list[int]
) -> None:
    one, other = mean_of(effects, groups), mean_of(effects, same)
    assert (one.error, one.degrees) == (other.error, other.degrees)


def test_the_error_is_at_least_that_of_the_test_set() -> None:
    effects = np.array([1.0, 1.0, 1.1, 0.9])
    alone = np.std(effects, ddof=1) / 2
    # The variance between units includes the noise of the test set, which is not added again.
    for factor, test_error, expected in ((1, 0.0, alone), (1, 0.6, 0.3), (100, 0.6, 100 * alone)):
        assert mean_of(effects * factor, [0] * 4, test_error).error == pytest.approx(expected)


def test_comparisons_of_the_same_problems_are_one_unit() -> None:
    once = {RULE: [comparison("a", each, unit=each) for each in (1.0, 1.2, 0.8, 1.1)]}
    often = {RULE: [each for each in once[RULE] for _ in range(6)]}
    found, expected = row_of(evidence_table(often)), row_of(evidence_table(once))
    assert (found["comparisons"], found["units"]) == (24, 4)
    assert (found["lower_here"], found["upper_here"]) == pytest.approx(
        (expected["lower_here"], expected["upper_here"])
    )
    two = {RULE: [comparison("a", 1.0, unit=unit) for unit in (0, 1) for _ in range(6)]}
    assert row_of(evidence_table(two))["needs"] == "2 of 4 problems"


def test_linked_datasets_are_one_group() -> None:
    assert evidence.groups_of_datasets([["a"], ["b"], ["a"]], []) == [0, 1, 0]
    assert evidence.groups_of_datasets([["a"], ["b"], ["c"]], [("c", "a"), ("x", "y")]) == [0, 1, 0]
    assert evidence.groups_of_datasets([["a", "b"], ["c", "d"], ["b", "d"]], []) == [0, 0, 0]
    assert evidence.groups_of_datasets([], [("a", "b")]) == []


# -- verdicts ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("effect", "error", "units", "expected"),
    [
        (1.0, 0.1, None, "supported"),
        (-1.0, 0.1, None, "contradicted"),
        (0.05, 0.1, None, "no difference"),
        (0.6, 0.1, None, "not resolved"),  # above 0, but not above the margin
        (0.0, 1.0, None, "not resolved"),
        # The interval alone would give a verdict, but most units do not agree with it.
        (10.0, 0.1, [60.0, 0.1, -0.1, 0.2, -0.2, 0.0], "not resolved"),
        (10.35, 0.1, [60.0, 0.9, 0.8, 0.6, -0.2, 0.0], "supported"),
        (-10.0, 0.1, [-60.0, 0.1, -0.1, 0.2, -0.2, 0.0], "not resolved"),
        (0.0, 0.05, [2.0, -2.0, 2.1, -2.1, 2.0, -2.0], "not resolved"),
        (0.0, 0.05, [0.2, -0.2, 0.21, -0.21, 0.2, -0.2], "no difference"),
    ],
)
def test_verdicts_follow_from_interval_margin_and_units(
    effect: float, error: float, units: list[float] | None, expected: str
) -> None:
    units = units or [effect] * 31
    found = Mean(
        np.array(effect), np.array(error), np.array(float(len(units) - 1)), np.array(units)
    )
    assert found.verdict(0.5, 0.5, 0.05) == expected


@pytest.mark.parametrize(
    ("effects", "related", "effect", "verdict", "needs", "known"),
    [
        ({"a": [0.9, 1.1], "b": [1.0, 1.2], "c": [0.8, 1.0]}, [], 1.0, "supported", ("", ""), 4),
        # Datasets that share examples count as one.
        ({"a": [0.9, 1.1], "half": [1.0, 1.2], "tenth": [0.8, 1.0]}, [("a", "half"), ("a", "tenth")], 1.0,
         "supported here", ("1 of 3 separate datasets", "other datasets"), 2),
        # Datasets that disagree give no verdict on other datasets.
        ({"a": [1.0, 1.1, 0.9], "b": [0.5, 0.4, 0.6], "c": [2.0, 2.1, 1.9]}, [], 3.5 / 3,
         "supported here", ("", ""), 4),
        # Too few problems, or datasets.
        ({"a": [1.0], "b": [1.0], "c": [0.9]}, [], 2.9 / 3, "not resolved", ("3 of 4 problems", ""), 0),
        ({"a": [1.0, 1.1, 0.9], "b": [1.0, 1.1, 0.9]}, [], 1.0,
         "supported here", ("2 of 3 separate datasets", "other datasets"), 2),
        # NaN effects do not count.
        ({"a": [1.0, math.nan, 1.2], "b": [math.nan]}, [], 1.1, "not resolved", ("2 of 4 problems", ""), 0),
    ],
)  # fmt: skip
def test_support_depends_on_the_agreement_of_problems_and_datasets(
    effects: dict[str, list[float]],
    related: list[tuple[str, str]],
    effect: float,
    verdict: str,
    needs: tuple[str, str],
    known: int,
) -> None:
    row = row_of(evidence_table(comparisons(effects), related))
    assert row["effect"] == pytest.approx(effect)
    assert (row["verdict"], (row["needs"], row["needed_for"])) == (verdict, needs)
    ends = row[["lower_here", "upper_here", "lower_elsewhere", "upper_elsewhere"]]
    assert ends.notna().sum() == known
    if known:
        assert MARGIN < row["lower_here"] < effect < row["upper_here"]
        assert (row["comparisons"], row["in_favour"], row["against"]) == (row["units"],) * 2 + (0,)
    if known == 4:
        assert (row["lower_elsewhere"] > MARGIN) == (verdict == "supported")


def test_all_intervals_of_a_table_hold_at_the_same_time() -> None:
    effects = [1.0, 1.2, 0.8, 1.1, 0.9, 1.0]
    _, level = evidence.gather(comparisons({"a": effects}))
    assert level == LEVEL
    every = {rule.key: comparisons({"a": effects})[RULE] for rule in RULES}
    _, together = evidence.gather(every)
    assert together == LEVEL / len(RULES)
    spread = {rule.key: comparisons(dict.fromkeys("abc", effects))[RULE] for rule in RULES}
    assert evidence.gather(spread)[1] == LEVEL / (2 * len(RULES))
    widths = [
        np.ptp(row_of(evidence_table(each))[["lower_here", "upper_here"]].to_numpy())
        for each in (comparisons({"a": effects}), every)
    ]
    assert widths[0] < widths[1]


@pytest.mark.parametrize(
    ("effects", "noise", "threshold", "verdict"),
    [
        ((0.9, 1.0, 1.1), 0.05, MARGIN, "supported here"),
        ((0.9, 1.0, 1.1), 2.0, 2.0, "not resolved"),
        # The noise of the reference does not matter for "no difference".
        ((0.01, 0.0, -0.01), 2.0, 2.0, "no difference here"),
    ],
)
def test_effects_below_the_noise_of_the_reference_support_no_rule(
    effects: tuple[float, ...], noise: float, threshold: float, verdict: str
) -> None:
    units = [comparison("a", each, noise=noise, unit=unit) for unit, each in enumerate(effects * 2)]
    row = row_of(evidence_table({RULE: units}))
    assert row[["threshold", "verdict"]].to_list() == [threshold, verdict]


def problems(accuracy: np.ndarray[Any, Any], test_size: float) -> list[AccuracyGrid]:
    """Return grids of eight problems at two epsilons and numbers of epochs, all with the same accuracies."""
    return [
        AccuracyGrid(
            dataset, backbone, "film", "adam", epsilon, epochs, (64, 256, 1024), (0.1, 1.0, 10.0),
            accuracy, accuracy, accuracy, test_size,
        )
        for dataset in "abcd"
        for backbone in ("small", "large")
        for epsilon in (1.0, 8.0)
        for epochs in (2, 8)
    ]  # fmt: skip


@pytest.mark.parametrize("accuracy", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("test_size", [200, 10**9, math.inf])
def test_equal_accuracies_of_all_trials_decide_nothing(accuracy: float, test_size: float) -> None:
    """Every trial diverged, names the largest class, or is right: no setting can be told from another."""
    found = evidence_table(compare(problems(np.full((3, 3, 3), accuracy), test_size)))
    assert set(found["verdict"]) == {"not resolved"}
    assert found[["effect", "lower_here", "upper_here", "lower_elsewhere"]].isna().all(axis=None)


def test_the_error_over_datasets_is_at_least_that_of_their_test_sets() -> None:
    effects, groups = np.array([1.0, 1.0, 1.0, 1.0]), [0, 0, 1, 2]
    # Means of two, one and one unit, each with error 0.6; then of three datasets.
    expected = 0.6 * math.sqrt(1 / 2 + 1 + 1) / 3
    assert evidence.mean_elsewhere(effects, groups, 0.6).error == pytest.approx(expected)
    far = evidence.mean_elsewhere(effects * [1, 1, 10, 30], groups, 0.6).error
    assert far == pytest.approx(stats.sem([1, 10, 30]))


def test_units_that_agree_exactly_have_no_interval() -> None:
    """They do not tell how far they scatter."""
    same = Mean(
        effect=np.zeros(1), error=np.zeros(1), degrees=np.full(1, 3), units=np.zeros((1, 4))
    )
    assert np.isnan(same.interval(0.05)).all()


# -- effects of rules ----------------------------------------------------------------------

BOUNDS = (0.1, 1.0, 10.0, 100.0)
SIZES = (100, 200, 400, 800)


def grid(function: Callable[..., float], /, **changes: Any) -> AccuracyGrid:
    """Return a grid of a function of (B, C, seed); by default 2 seeds, and choices by the test set."""
    sizes, bounds = changes.pop("batch_size", SIZES), changes.pop("clipping_bound", BOUNDS)
    seeds = range(1, changes.pop("seeds", 2) + 1)
    table = np.array([[[function(b, c, s) for s in seeds] for c in bounds] for b in sizes])
    settings = {
        "dataset": "digits", "backbone": "small", "method": "film", "optimizer": "adam",
        "epsilon": 1.0, "epochs": 8, "selection": table, "accuracy": table, "tuning": table[..., :1],
    }  # fmt: skip
    return AccuracyGrid(batch_size=sizes, clipping_bound=bounds, **(settings | changes))


def peak(size: float, bound: float, top: float = 0.9) -> Callable[..., float]:
    """Return an accuracy that falls by 0.1 per doubling of B and decade of C from the optimum."""
    return lambda b, c, seed: top - 0.1 * (abs(math.log2(b / size)) + abs(math.log10(c / bound)))


def compared(rule: str, grids: list[AccuracyGrid]) -> list[Comparison]:
    (found,) = (each for each in RULES if each.key == rule)
    return list(found.compare(grids))


# -- the gain of adapting ------------------------------------------------------------------


@pytest.mark.parametrize("axis", ["clipping_bound", "batch_size"])
def test_gain_and_variance_equal_those_of_a_loop_over_all_cells(axis: Any) -> None:
    """All else is tuned again on each side, by selection accuracy of the seeds that do not measure."""
    random = np.random.default_rng(1)
    easy, hard = (
        grid(lambda *_: 0.0, selection=chosen, accuracy=measured, tuning=chosen[..., :1])
        for chosen, measured in random.uniform(0.4, 0.6, (2, 2, 4, 4, 3))
    )
    tops = easy.selection.mean(axis=-1).max(axis=0 if axis == "clipping_bound" else 1)
    weights = np.exp((tops - tops.max()) / evidence.standard_error(easy))
    weights /= weights.sum()
    gains, differing = np.zeros(4), np.zeros(4)
    for left_out in (1, 2):
        seen = np.delete(hard.selection, left_out, axis=2).mean(axis=2)
        for value in range(4):
            places = [(b, c) for b in range(4) for c in range(4)]
            along = [c if axis == "clipping_bound" else b for b, c in places]
            smaller, larger = (
                max((cell for cell, k in zip(places, along, strict=True) if side(k)), key=seen.item)
                for side in (lambda k, v=value: k <= v, lambda k, v=value: k >= v)
            )
            gains[value] += hard.accuracy[larger][left_out] - hard.accuracy[smaller][left_out]
            differing[value] += larger != smaller
    expected = 100 * (weights * gains).sum() / 2
    assert evidence.gain_of_adapting(easy, hard, axis, "larger") == pytest.approx(expected)
    assert evidence.gain_of_adapting(easy, hard, axis, "smaller") == pytest.approx(-expected)
    # Two networks err independently on 400 examples; the difference of a cell to itself is 0.
    known = evidence.variance_of_test_set(
        easy, replace(hard, test_size=400, accuracy=hard.selection), axis
    )
    top = hard.selection.mean(axis=2).max()
    variance = 2 * (100 * share_error(top, 400)) ** 2
    assert known == pytest.approx(variance * (weights * differing).sum() / 2)


# -- comparisons ---------------------------------------------------------------------------


def test_lower_epsilon_by_hand() -> None:
    # From epsilon 8 to 1, three halvings: C grows by a decade each, B halves each.
    grids = [grid(peak(100 * e, 100 / e ** math.log2(10)), epsilon=e) for e in (8.0, 1.0, 4.0, 2.0)]
    (bounds,) = compared("lower_epsilon_larger_bound", grids)
    (sizes,) = compared("lower_epsilon_smaller_batch", grids)
    assert float(bounds.effect) == pytest.approx(10)  # points per halving
    assert float(sizes.effect) == pytest.approx(10)
    assert bounds.row == {
        "dataset": "digits", "backbone": "small", "method": "film", "optimizer": "adam",
        "epsilon": "8, 4, 2, 1", "epochs": "8", "found": "C = 0.1, C = 1, C = 10, C = 100",
        "reference_at": "smallest", "seeds": 2, "effect": pytest.approx(10),
    }  # fmt: skip
    assert sizes.reference_at == "largest"


@pytest.mark.parametrize(
    ("condition", "other", "rule"),
    [
        ("backbone", "dataset", "weaker_backbone_larger_bound"),
        ("dataset", "backbone", "harder_dataset_larger_bound"),
    ],
)
def test_the_easiest_and_the_hardest_backbone_or_dataset_are_compared(
    condition: str, other: str, rule: str
) -> None:
    # "b" is the easiest, with best C = 1; "c" is the hardest, with best C = 100; "a" is between them.
    tops = {"a": (0.7, 10.0), "b": (0.9, 1.0), "c": (0.5, 100.0)}
    grids = [grid(peak(200, c, top), **{condition: name}) for name, (top, c) in tops.items()]
    (found,) = compared(rule, grids)
    assert float(found.effect) == pytest.approx(20)
    assert [getattr(each, condition) for each in found.grids] == ["b", "c"]
    more = ({}, {other: "x"}, {"epsilon": 2.0}, {"optimizer": "sgd"})
    names = zip("abcd", more, strict=True)
    apart = [grid(peak(200, 1.0), **{condition: name}, **each) for name, each in names]
    assert not compared(rule, apart)


# -- joint tuning --------------------------------------------------------------------------


def joint(tuning: Any, measured: Any) -> AccuracyGrid:
    """Return a grid of B = 100, 200 and C = 1, 10; the first seed chooses, and the others measure.

    Args:
        tuning: accuracies of the first seed, shape (B, C, learning rates).
        measured: accuracies of the other seeds at the best learning rate, shape (B, C).
    """
    rates = np.array(tuning)

    def accuracy(b: int, c: float, seed: int) -> float:
        cell = (int(b > 100), int(c > 1))
        return (
            float(np.nanmax(rates[cell]) if seed == 1 else measured[cell[0]][cell[1]]) - seed / 100
        )

    sizes, bounds = (100, 200), (1.0, 10.0)
    return grid(accuracy, batch_size=sizes, clipping_bound=bounds, tuning=rates, seeds=3)


# At the middle (200, 10) the second rate is best. With it C = 1 is best, and then B = 200: 0.65. The best of
# all is (100, 10) at the first rate.
MIDDLE = ([[(0.2, 0.3), (0.8, 0.1)], [(0.1, 0.65), (0.2, 0.6)]], [[0.3, 0.8], [0.65, 0.6]])


@pytest.mark.parametrize(
    ("tuning", "measured", "gain"),
    [
        (*MIDDLE, 15),
        # The second rate was not tried at C = 1, so C = 10 stays the choice and nothing is lost.
        ([[(0.5, math.nan), (0.4, 0.6)]] * 2, [[0.1, 0.9]] * 2, 0),
        # The first seed prefers (100, 10), also when it tunes B after C; the others measure 30 points less.
        ([[(0.1,), (0.9,)], [(0.1,), (0.8,)]], [[0.5, 0.2], [0.5, 0.5]], 0),
        # Joint tuning chooses (100, 1), tuning one by one (200, 10).
        ([[(0.9,), (0.1,)], [(0.1,), (0.8,)]], [[0.2, 0.5], [0.5, 0.5]], -30),
    ],
)
def test_joint_tuning_by_hand(tuning: Any, measured: Any, gain: float) -> None:
    assert evidence.gain_of_joint_tuning(joint(tuning, measured)) == pytest.approx(gain)
