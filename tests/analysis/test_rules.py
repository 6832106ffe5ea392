import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.synthetic import make_study, write_cells

from dpsweep.analysis.frames import load_trials
from dpsweep.analysis.rules import FEWEST_COMPARISONS, comparisons, evidence, grids, verdict
from dpsweep.study import Cell
from dpsweep.study.paths import Paths

BOUNDS = [0.1, 1.0, 10.0, 100.0]
Accuracy = Callable[[Cell, int], float]


def measured(tmp_path: Path, accuracy: Accuracy, sweeps: dict[str, dict[str, Any]]) -> pd.DataFrame:
    study = make_study(sweeps, train_size=1600)
    paths = Paths(tmp_path)
    write_cells(study, paths, lambda cell, rate, seed: {"macro_accuracy": accuracy(cell, seed)})
    cells = [cell for sweep in study.sweeps for cell in study.sweep_cells(sweep)]
    found = comparisons(grids(load_trials(paths, cells)))
    return evidence(found).set_index("rule")


def peak(cell: Cell, bound: float, batch_size: float) -> float:
    """Accuracy that falls by 0.1 for every decade of C and doubling of B from the optimum."""
    size = 1600 if cell.batch_size == "full" else cell.batch_size
    away = abs(math.log10(float(cell.clipping_bound) / bound)) + abs(math.log2(size / batch_size))
    return 0.9 - 0.1 * away


def test_privacy_rules_by_hand(tmp_path: Path) -> None:
    # From epsilon 8 to 1 (three halvings) C grows from 0.1 to 100: one decade a halving;
    # B falls from 800 to 100: one doubling a halving.
    def accuracy(cell: Cell, seed: int) -> float:
        halvings = math.log2(8 / cell.epsilon)
        return peak(cell, 0.1 * 10**halvings, 800 / 2**halvings) + 1e-4 * seed

    sweep = {
        "epsilon": [1.0, 2.0, 4.0, 8.0],
        "epochs": [1, 2, 3, 4, 5, 6],
        "clipping_bound": BOUNDS,
        "batch_size": [100, 200, 400, 800],
        "seeds": 2,
    }
    rules = measured(tmp_path, accuracy, {"s": sweep})
    for rule in ("privacy_clipping", "privacy_batch_size"):
        row = rules.loc[rule]
        assert row["effect"] == pytest.approx(1.0)
        assert (row["lower"], row["upper"]) == pytest.approx((1.0, 1.0))
        assert (row["comparisons"], row["in_favour"], row["against"], row["problems"]) == (
            6,
            6,
            0,
            1,
        )
        assert row["verdict"] == "supported"
    assert rules.loc["many_epochs", "effect"] == pytest.approx(0.0)
    assert rules.loc["many_epochs", "verdict"] == "not resolved"
    assert rules.loc["strong_backbone", "comparisons"] == 0
    assert np.isnan(rules.loc["strong_backbone", "effect"])
    assert rules.loc["strong_backbone", "verdict"] == "not resolved"


def test_the_opposite_contradicts(tmp_path: Path) -> None:
    def accuracy(cell: Cell, seed: int) -> float:
        return peak(cell, 1.0 if cell.epsilon == 1 else 10.0, 100)

    sweep = {
        "epsilon": [1.0, 2.0], "epochs": [1, 2, 3, 4, 5, 6], "clipping_bound": BOUNDS, "seeds": 2,
    }  # fmt: skip
    row = measured(tmp_path, accuracy, {"s": sweep}).loc["privacy_clipping"]
    assert row["effect"] == pytest.approx(-1.0)
    assert row["verdict"] == "contradicted"


def test_backbone_rules_by_hand(tmp_path: Path) -> None:
    # "base" is the stronger, whichever sweep comes first; its best C is 1. The weaker one's is
    # 1000, which "base" has not tried: of those that both have, 100.
    def accuracy(cell: Cell, seed: int) -> float:
        strong = cell.problem == "digits_large_film"
        return peak(cell, 1.0 if strong else 1000.0, 100) - (0.0 if strong else 0.3)

    sweep: dict[str, Any] = {"epochs": [1, 2, 3, 4, 5, 6], "clipping_bound": BOUNDS, "seeds": 3}
    weak = sweep | {"clipping_bound": [*BOUNDS, 1000.0]}
    rules = measured(tmp_path, accuracy, {"tiny": weak, "base": sweep | {"backbone": "large"}})
    shift, gain = rules.loc["strong_backbone"], rules.loc["weak_backbone"]
    assert shift["effect"] == pytest.approx(2.0)  # decades
    assert gain["effect"] == pytest.approx(0.2)  # of accuracy: C = 100 instead of 1
    assert shift["comparisons"] == gain["comparisons"] == 6
    assert shift["problems"] == 2
    assert shift["verdict"] == gain["verdict"] == "supported"


def test_epoch_rules_by_hand(tmp_path: Path) -> None:
    # The best B doubles with the epochs: 100 at one epoch, 400 at four. At one epoch the full
    # batch (1,600) is four doublings away: it costs 0.4.
    def accuracy(cell: Cell, seed: int) -> float:
        return peak(cell, 1.0, 100 * cell.epochs)

    sweep = {
        "epsilon": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
        "epochs": [1, 2, 4],
        "batch_size": [100, 200, 400, "full"],
        "seeds": 2,
    }
    rules = measured(tmp_path, accuracy, {"s": sweep})
    assert rules.loc["few_epochs", "effect"] == pytest.approx(0.4)
    assert rules.loc["few_epochs", "comparisons"] == 6
    assert rules.loc["many_epochs", "effect"] == pytest.approx(1.0)
    assert rules.loc["many_epochs", "verdict"] == "supported"


def test_a_choice_is_measured_on_the_repeats_that_did_not_make_it(tmp_path: Path) -> None:
    # The first seed overrates the smallest batch; the other says it is 0.2 worse than full.
    def accuracy(cell: Cell, seed: int) -> float:
        small = cell.batch_size == 100
        return {1: 0.9 if small else 0.5, 2: 0.4 if small else 0.6}[seed]

    sweep = {
        "epsilon": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "epochs": [1, 2], "seeds": 2,
        "batch_size": [100, "full"],
    }  # fmt: skip
    row = measured(tmp_path, accuracy, {"s": sweep}).loc["few_epochs"]
    assert row["effect"] == pytest.approx(-0.2)
    assert row["verdict"] == "contradicted"


def test_joint_tuning_by_hand(tmp_path: Path) -> None:
    # At the middle B = 200 the best C is 1, and at C = 1 the best B is 200 with 0.65. The joint
    # optimum is (800, 10) with 0.8.
    table = {
        (100, 1.0): 0.2, (200, 1.0): 0.65, (800, 1.0): 0.3,
        (100, 10.0): 0.7, (200, 10.0): 0.6, (800, 10.0): 0.8,
    }  # fmt: skip

    def accuracy(cell: Cell, seed: int) -> float:
        return table[int(cell.batch_size), float(cell.clipping_bound)]

    sweep = {
        "epsilon": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "batch_size": [100, 200, 800], "seeds": 2,
        "clipping_bound": [1.0, 10.0],
    }  # fmt: skip
    row = measured(tmp_path, accuracy, {"s": sweep}).loc["jointly"]
    assert row["effect"] == pytest.approx(0.15)
    assert row["verdict"] == "supported"


def test_one_seed_cannot_measure_a_gain_but_can_place_an_optimum(tmp_path: Path) -> None:
    def accuracy(cell: Cell, seed: int) -> float:
        return peak(cell, 10.0 / cell.epsilon, 100)

    sweep = {
        "epsilon": [1.0, 10.0], "epochs": [1, 2], "batch_size": [100, 200],
        "clipping_bound": BOUNDS,
    }  # fmt: skip
    rules = measured(tmp_path, accuracy, {"s": sweep})
    assert rules.loc["privacy_clipping", "comparisons"] == 2
    assert rules.loc["privacy_clipping", "verdict"] == "not resolved"  # too few
    assert rules.loc[["few_epochs", "jointly"], "comparisons"].tolist() == [0, 0]


def test_noise_is_not_resolved_and_the_interval_covers_zero(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    noise: dict[tuple[str, int], float] = {}

    def accuracy(cell: Cell, seed: int) -> float:
        return noise.setdefault((cell.name, seed), float(random.normal(0.5, 0.01)))

    sweep = {
        "epsilon": [1.0, 2.0, 4.0], "epochs": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10],
        "batch_size": [100, 200, 400], "clipping_bound": BOUNDS, "seeds": 3,
    }  # fmt: skip
    rules = measured(tmp_path, accuracy, {"s": sweep})
    for rule in ("privacy_clipping", "privacy_batch_size", "jointly"):
        assert rules.loc[rule, "lower"] < 0 < rules.loc[rule, "upper"], rule
        assert rules.loc[rule, "verdict"] == "not resolved"


def test_missing_and_diverged_cells_do_not_decide(tmp_path: Path) -> None:
    def accuracy(cell: Cell, seed: int) -> float:
        if cell.clipping_bound == 100.0:
            return math.nan
        return peak(cell, 1.0, 100)

    sweep = {
        "epsilon": [1.0, 2.0], "epochs": [1, 2, 3, 4, 5, 6], "clipping_bound": BOUNDS,
        "batch_size": [100, 200], "seeds": 2,
    }  # fmt: skip
    study = make_study({"s": sweep}, train_size=1600)
    paths = Paths(tmp_path)
    write_cells(study, paths, lambda cell, rate, seed: {"macro_accuracy": accuracy(cell, seed)})
    cells = study.sweep_cells("s")
    (paths.cell(cells[0]) / "trials.parquet").unlink()
    trials = load_trials(paths, cells, missing=[])
    rules = evidence(comparisons(grids(trials))).set_index("rule")
    assert rules.loc["privacy_clipping", "comparisons"] == 6
    assert rules.loc["privacy_clipping", "effect"] == pytest.approx(0.0)


def test_automatic_clipping_and_training_without_privacy_are_no_evidence(tmp_path: Path) -> None:
    sweeps: dict[str, dict[str, Any]] = {
        "auto": {"clipping_bound": "automatic", "epsilon": [1.0, 8.0], "batch_size": [100, 200]},
        "free": {"clipping_bound": "none", "epsilon": [math.inf]},
    }
    rules = measured(tmp_path, lambda cell, seed: 0.5, sweeps)
    assert rules["comparisons"].sum() == 0


@pytest.mark.parametrize(
    ("lower", "upper", "count", "expected"),
    [
        (0.1, 0.2, FEWEST_COMPARISONS, "supported"),
        (0.1, 0.2, FEWEST_COMPARISONS - 1, "not resolved"),
        (-0.2, -0.1, FEWEST_COMPARISONS, "contradicted"),
        (-0.1, 0.1, 100, "not resolved"),
        (0.0, 0.1, 100, "not resolved"),
        (math.nan, math.nan, 0, "not resolved"),
    ],
)
def test_verdicts(lower: float, upper: float, count: int, expected: str) -> None:
    assert verdict(lower, upper, count) == expected
