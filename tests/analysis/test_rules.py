"""Each rule by hand, on grids whose optimum is known."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dpsweep.analysis.grids import Grid
from dpsweep.analysis.rules import RULES, Comparison

BOUNDS = (0.1, 1.0, 10.0, 100.0)
SIZES = (100, 200, 400, 800)
RULE = {rule.key: rule for rule in RULES}


def grid(accuracy: Callable[..., float], **changes: Any) -> Grid:
    """A grid from a function of (B, C, seed); by default 2 seeds, and choices by the test set."""
    sizes, bounds = changes.pop("batch_sizes", SIZES), changes.pop("bounds", BOUNDS)
    seeds = range(1, changes.pop("seeds", 2) + 1)
    table = np.array([[[accuracy(b, c, s) for s in seeds] for c in bounds] for b in sizes])
    settings = {
        "dataset": "digits", "backbone": "small", "method": "film", "optimizer": "adam",
        "epsilon": 1.0, "epochs": 8, "selection": table, "accuracy": table,
    }  # fmt: skip
    return Grid(batch_sizes=sizes, bounds=bounds, **(settings | changes))


def peak(size: float, bound: float, top: float = 0.9) -> Callable[..., float]:
    """Accuracy that falls by 0.1 for every doubling of B and decade of C from the optimum."""
    return lambda b, c, seed: top - 0.1 * (abs(math.log2(b / size)) + abs(math.log10(c / bound)))


def compared(rule: str, grids: list[Grid]) -> list[Comparison]:
    return list(RULE[rule].compare(grids))


# -- epsilon -------------------------------------------------------------------------------


def test_lower_epsilon_by_hand() -> None:
    # From epsilon 8 to 1, three halvings: C grows by a decade each, B halves each.
    grids = [grid(peak(100 * e, 100 / e ** math.log2(10)), epsilon=e) for e in (8.0, 1.0, 4.0, 2.0)]
    (bounds,) = compared("lower_epsilon_larger_bound", grids)
    (sizes,) = compared("lower_epsilon_smaller_batch", grids)
    assert bounds.effect == pytest.approx(1.0)
    assert sizes.effect == pytest.approx(1.0)
    assert bounds.row == {
        "dataset": "digits", "backbone": "small", "method": "film", "optimizer": "adam",
        "epsilon": "1, 2, 4, 8", "epochs": "8", "found": "C = 100, C = 10, C = 1, C = 0.1",
        "seeds": 2, "effect": pytest.approx(1.0),
    }  # fmt: skip


def test_problems_and_epochs_are_compared_apart() -> None:
    grids = [
        grid(peak(100, 1.0 if e == 8 else 10.0), epsilon=e, epochs=n, backbone=name)
        for e in (1.0, 8.0)
        for n in (2, 4)
        for name in ("small", "large")
    ]
    found = compared("lower_epsilon_larger_bound", grids)
    assert [each.effect for each in found] == pytest.approx([1 / 3] * 4)
    assert len({(g.backbone, g.epochs) for each in found for g in each.grids[:1]}) == 4


def test_only_what_all_grids_of_a_comparison_have_decides() -> None:
    # The best C at epsilon 1 is 1000, which was not tried at epsilon 8.
    grids = [
        grid(peak(100, 1000.0), epsilon=1.0, bounds=(*BOUNDS, 1000.0)),
        grid(peak(100, 1.0), epsilon=8.0),
    ]
    (found,) = compared("lower_epsilon_larger_bound", grids)
    assert list(found.found) == ["C = 100", "C = 1"]
    assert found.effect == pytest.approx(2 / 3)
    # B has less in common than two, so nothing is said about it.
    narrow = grid(peak(100, 1.0), epsilon=8.0, batch_sizes=(100, 77))
    assert not compared("lower_epsilon_smaller_batch", [grids[0], narrow])


# -- backbones and datasets ----------------------------------------------------------------

STRENGTH = {
    "backbone": ("stronger_backbone_smaller_bound", "weaker_backbone_larger_bound"),
    "dataset": ("easier_dataset_smaller_bound", "harder_dataset_larger_bound"),
}


@pytest.mark.parametrize("condition", ["backbone", "dataset"])
def test_the_strongest_and_the_weakest_are_compared(condition: str) -> None:
    # "b" is the strongest, its best C is 1; "c" is the weakest, with 100. "a" lies between.
    tops = {"a": (0.7, 10.0), "b": (0.9, 1.0), "c": (0.5, 100.0)}
    grids = [grid(peak(200, c, top), **{condition: name}) for name, (top, c) in tops.items()]
    shift, gain = (compared(rule, grids) for rule in STRENGTH[condition])
    assert [each.effect for each in shift] == pytest.approx([2.0])  # decades
    assert [each.effect for each in gain] == pytest.approx([0.2])  # C = 100 instead of 1
    assert [getattr(each, condition) for each in shift[0].grids] == ["c", "b"]


@pytest.mark.parametrize("condition", ["backbone", "dataset"])
def test_grids_that_differ_in_more_than_one_condition_are_not_compared(condition: str) -> None:
    other = "dataset" if condition == "backbone" else "backbone"
    grids = [
        grid(peak(200, 1.0), **{condition: "a"}),
        grid(peak(200, 1.0), **{condition: "b", other: "x"}),
        grid(peak(200, 1.0), **{condition: "c"}, epsilon=2.0),
        grid(peak(200, 1.0), **{condition: "d"}, optimizer="sgd"),
    ]
    assert not any(compared(rule, grids) for rule in STRENGTH[condition])


def test_there_is_no_larger_bound_to_try_than_the_largest() -> None:
    grids = [grid(peak(200, 100.0, top), backbone=str(top)) for top in (0.5, 0.9)]
    assert compared("stronger_backbone_smaller_bound", grids)[0].effect == 0
    assert not compared("weaker_backbone_larger_bound", grids)


# -- epochs --------------------------------------------------------------------------------


def test_epochs_by_hand() -> None:
    # The best B doubles with the epochs, so the largest costs 0.1 more per halving of the epochs.
    grids = [grid(peak(100 * n, 1.0), epochs=n) for n in (1, 2, 4)]
    (cost,) = compared("fewer_epochs_no_large_batch", grids)
    (growth,) = compared("more_epochs_larger_batch", grids)
    assert cost.found == ["cost +0.3000", "cost +0.2000", "cost +0.1000"]
    assert cost.effect == pytest.approx(0.1)
    assert growth.effect == pytest.approx(1.0)


def test_a_largest_batch_that_is_always_bad_is_no_evidence_about_epochs() -> None:
    # Once the fewest epochs alone were looked at, and this counted as 0.3 for the rule.
    grids = [grid(peak(100, 1.0), epochs=n) for n in (1, 2, 4)]
    (cost,) = compared("fewer_epochs_no_large_batch", grids)
    assert cost.effect == pytest.approx(0.0)


# -- joint tuning --------------------------------------------------------------------------


def test_joint_tuning_by_hand() -> None:
    # At the middle B = 200 the best C is 1, and at C = 1 the best B is 200 with 0.65. The joint
    # optimum is (800, 10) with 0.8.
    table = {
        (100, 1.0): 0.2, (200, 1.0): 0.65, (800, 1.0): 0.3,
        (100, 10.0): 0.7, (200, 10.0): 0.6, (800, 10.0): 0.8,
    }  # fmt: skip
    one = grid(lambda b, c, seed: table[b, c], batch_sizes=(100, 200, 800), bounds=(1.0, 10.0))
    (found,) = compared("tune_jointly", [one])
    assert found.effect == pytest.approx(0.15)
    assert list(found.found) == ["B = 800, C = 10"]


# -- measuring -----------------------------------------------------------------------------


def test_every_seed_but_the_first_counts_the_same() -> None:
    # What is chosen is clear; it is worth 0.1 more to seed 2 and 0.3 less to seed 3: -0.1 on
    # average. Two of three parts to seed 2 once made -0.033 of it.
    difference = {1: 0.9, 2: 0.1, 3: -0.3}

    def accuracy(b: int, c: float, seed: int) -> float:
        return 0.5 + (difference[seed] if b == 100 else 0.0)

    sizes = (100, 800)
    seen = np.array([[[1.0] * 3], [[0.0] * 3]])  # held-out examples always choose B = 100
    grids = [
        grid(accuracy, epochs=n, seeds=3, batch_sizes=sizes, bounds=(1.0,), selection=seen)
        for n in (1, 2)
    ]
    (found,) = compared("fewer_epochs_no_large_batch", grids)
    assert list(found.found) == ["cost -0.1000", "cost -0.1000"]


def test_gains_are_measured_by_seeds_that_did_not_choose() -> None:
    # The first seed overrates the smallest batch; the second says that it is 0.2 worse.
    def accuracy(b: int, c: float, seed: int) -> float:
        return {1: 0.9 if b == 100 else 0.5, 2: 0.4 if b == 100 else 0.6}[seed]

    one = grid(accuracy, batch_sizes=(100, 800), bounds=(1.0,))
    assert one.gain(lambda g: g.best, instead=lambda _: (1, 0)) == pytest.approx(-0.2)


def test_held_out_examples_decide_where_the_optimum_lies() -> None:
    on_test = [grid(peak(100, 0.1 if e == 1 else 10.0), epsilon=e) for e in (1.0, 8.0)]
    grids = [
        grid(peak(100, 0.1 if g.epsilon == 1 else 10.0), epsilon=g.epsilon, selection=-g.accuracy)
        for g in on_test
    ]
    (by_test,) = compared("lower_epsilon_larger_bound", on_test)
    (by_held_out,) = compared("lower_epsilon_larger_bound", grids)
    assert by_test.effect == pytest.approx(-2 / 3)
    assert by_held_out.effect == pytest.approx(3 / 3 - 0)  # the worst C: 100 and 0.1


def test_one_seed_cannot_measure_a_gain_but_can_place_an_optimum() -> None:
    grids = [grid(peak(100 * n, 1.0), epochs=n, seeds=1) for n in (1, 2)]
    assert compared("more_epochs_larger_batch", grids)[0].effect == pytest.approx(1.0)
    assert math.isnan(compared("fewer_epochs_no_large_batch", grids)[0].effect)
    assert all(math.isnan(each.effect) for each in compared("tune_jointly", grids))


def test_a_cell_without_accuracy_is_never_chosen() -> None:
    def accuracy(b: int, c: float, seed: int) -> float:
        return math.nan if c == 100 else peak(100, 100.0)(b, c, seed)

    grids = [grid(accuracy, epsilon=e) for e in (1.0, 8.0)]
    (found,) = compared("lower_epsilon_larger_bound", grids)
    assert list(found.found) == ["C = 10", "C = 10"]
    empty = grid(lambda b, c, seed: math.nan, epsilon=8.0)
    assert not compared("lower_epsilon_larger_bound", [grids[0], empty])


def test_every_rule_has_a_function_that_says_what_it_compares() -> None:
    for rule in RULES:
        assert rule.compare.__name__ == rule.key
        assert rule.condition.split()[-1].lower() in (rule.compare.__doc__ or "").lower() or (
            rule.condition == "Lower ε"
        )
        assert list(rule.compare([])) == []
