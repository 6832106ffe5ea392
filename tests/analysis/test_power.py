"""Simulated studies: coverage of intervals for known effects, and forecasts of studies."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.evidence.verdicts import (
    NULL_WORLDS,
    RESULT,
    WITHOUT_EFFECT,
    rate,
)
from benchmarks.evidence.worlds import OddWorld
from tests.synthetic import make_study

from dpsweep.analysis.evidence import compare
from dpsweep.analysis.power import (
    World,
    design,
    outlook,
    simulate,
)
from dpsweep.analysis.statistics import AccuracyGrid
from dpsweep.base.files import read_json
from dpsweep.study import load_study

ROOT = Path(__file__).parents[2]
GRID: dict[str, Any] = {
    "epsilon": [1.0, 2.0, 8.0],
    "epochs": [2, 8],
    "batch_size": [100, 200, 400, "full"],
    "clipping_bound": [0.01, 0.1, 1.0, 10.0],
    "learning_rate": [0.01, 0.02, 0.04],
    "seeds": 3,
}


def grids(**changes: Any) -> list[AccuracyGrid]:
    study = make_study({"s": GRID | changes})
    return design(study, study.all_cells())


def test_the_first_seed_has_tuned_the_learning_rates() -> None:
    (first, *_) = simulate(grids(), World(), 200, np.random.default_rng(0)).measured
    assert first.tuning.max(axis=-1) == pytest.approx(first.selection[..., 0])
    means = first.accuracy.mean(axis=(0, 1, 2))
    assert means[0] > means[1:].max()


def test_the_world_of_forecasts_is_the_usual_one_of_the_benchmarks() -> None:
    """Both say what a problem's accuracies are; noise of other kinds is zero in the usual world."""
    of = [
        simulate(grids(), world, 3, np.random.default_rng(0)).exact[0].tuning
        for world in (World(), OddWorld())
    ]
    np.testing.assert_allclose(*of)


def test_studies_of_the_same_problems_differ_only_in_noise() -> None:
    quiet = OddWorld(scatter=1e-9)
    same, other = (
        simulate(grids(), quiet, 3, np.random.default_rng(0), same_problems).measured[0].accuracy
        for same_problems in (True, False)
    )
    assert np.ptp(same, axis=0).max() < 1e-9
    assert np.ptp(other, axis=0).max() > 1e-3


def test_the_bias_of_gains_is_smaller_after_the_correction() -> None:
    """The bias of the gain is its mean over studies minus the gain without noise."""
    settings = replace(WITHOUT_EFFECT, constant_cost=3, norms=1.1, scatter=0.9, between_problems=0)
    simulated = settings.simulate(grids(), 60, np.random.default_rng(0), same_problems=True)
    key = "lower_epsilon_larger_bound"
    exact = compare(simulated.exact, corrected=False)[key]
    assert [np.abs(each.effect).max() for each in exact] == pytest.approx([0] * len(exact))
    plain, corrected = (
        np.mean([each.effect for each in compare(simulated.measured, corrected=wanted)[key]])
        for wanted in (False, True)
    )
    assert plain > 0.05  # the best C is at the end of the grid: a wrong reference looks like a gain
    assert abs(corrected) < 0.75 * plain


FAST = ("the optimum lies beyond the grid",)


@pytest.mark.parametrize(
    "world",
    [
        each if each in FAST else pytest.param(each, marks=pytest.mark.nightly)
        for each in NULL_WORLDS
    ],
)
def test_without_an_effect_wrong_verdicts_are_rare(world: str) -> None:
    studies = 10 if world in FAST else 20
    rows = rate(_several(epsilon=[1.0, 8.0]), [], NULL_WORLDS[world], True, studies, seed=1)
    assert rows[0]["wrong_studies"] <= 0.05
    for row in rows[:5]:
        assert row.get("supported_here", 0) + row.get("contradicted_here", 0) <= 0.05


def _several(**changes: Any) -> list[AccuracyGrid]:
    """Return grids of four datasets with two backbones each."""
    return [
        replace(grid, dataset=f"d{dataset}", backbone=f"b{backbone}")
        for dataset, backbone, grid in product(range(4), range(2), grids(**changes))
    ]


# -- forecasts -----------------------------------------------------------------------------


def test_documented_and_printed_forecasts_agree() -> None:
    """docs/statistics.md lists the power of the demo, and ``dpsweep plan`` prints it."""
    rows = {row["rule"]: row for row in read_json(RESULT)["power"] if row["design"] == "the demo"}
    lines = list(outlook(load_study(ROOT / "studies/demo.yaml")))
    for name, of in {"Increase C": "larger_bound", "Decrease B": "smaller_batch"}.items():
        row = rows[f"lower_epsilon_{of}"]
        (line,) = (each for each in lines if each.startswith(f"  Lower ε: {name}: "))
        assert f"; {row['power']:.0%}, {row['smallest_visible']:.2g} points" in line
    assert lines[-1] == (
        "  Fewer epochs: Avoid large B (more: larger B viable): no verdict, which needs 4 problems; this "
        "study has 1"
    )
