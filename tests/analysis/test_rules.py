"""Effects of each rule computed by hand, on grids with a known optimum."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dpsweep.analysis.evidence import (
    RULES,
    Comparison,
    gain_of_adapting,
    gain_of_joint_tuning,
    standard_error,
    variance_of_test_set,
)
from dpsweep.analysis.grids import AccuracyGrid
from dpsweep.analysis.statistics import share_error

BOUNDS = (0.1, 1.0, 10.0, 100.0)
SIZES = (100, 200, 400, 800)
RULE = {rule.key: rule for rule in RULES}


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
    return list(RULE[rule].compare(grids))


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
    weights = np.exp((tops - tops.max()) / standard_error(easy))
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
    assert gain_of_adapting(easy, hard, axis, "larger") == pytest.approx(expected)
    assert gain_of_adapting(easy, hard, axis, "smaller") == pytest.approx(-expected)
    # Two networks err independently on 400 examples; the difference of a cell to itself is 0.
    known = variance_of_test_set(easy, replace(hard, test_size=400, accuracy=hard.selection), axis)
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
    assert gain_of_joint_tuning(joint(tuning, measured)) == pytest.approx(gain)
