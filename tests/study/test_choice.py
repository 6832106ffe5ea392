"""The choice of hyperparameters, and the accuracies that are reported of it."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.synthetic import make_study, write_cells

from dpsweep.analysis.frames import load_trials
from dpsweep.study import Cell
from dpsweep.study.choice import best_by_mean, choose, cross_fitted, repeats, summarise
from dpsweep.study.paths import Paths

nan = math.nan
Outcome = Callable[[Cell, float, int], dict[str, Any]]


def trials_of(
    tmp_path: Path, outcome: Outcome | dict[tuple[Any, float], list[float]], **sweep: Any
) -> pd.DataFrame:
    """Return the trials of one sweep.

    Outcomes are a function of cell, rate and seed, or the accuracies of all seeds by (B, C), at rate 0.01.
    """
    if isinstance(outcome, dict):
        accuracies = outcome
        sweep["seeds"] = len(next(iter(accuracies.values())))

        def outcome(cell: Cell, rate: float, seed: int) -> dict[str, Any]:
            accuracy = accuracies[cell.batch_size, float(cell.clipping_bound)][seed - 1]
            return {"macro_accuracy": accuracy, "diverged": math.isnan(accuracy)}

    study, paths = make_study({"s": sweep}), Paths(tmp_path)
    write_cells(study, paths, outcome)
    return load_trials(study, paths, study.sweep_cells("s"))


def test_repeats_are_the_trials_at_the_best_rate_of_the_first_seed(tmp_path: Path) -> None:
    score = {0.01: 0.5, 0.02: 0.7, 0.04: 0.7}  # a tie: the smaller rate
    trials = trials_of(
        tmp_path,
        lambda cell, rate, seed: {"macro_accuracy": score[rate] - 0.1 * (seed == 2)},
        learning_rate=list(score),
        seeds=3,
    )
    chosen = repeats(trials)
    assert chosen["learning_rate"].tolist() == [0.02] * 3
    assert chosen["seed"].tolist() == [1, 2, 3]
    np.testing.assert_allclose(chosen["macro_accuracy"], [0.7, 0.6, 0.7])


def test_centre_and_band_over_repeats(tmp_path: Path) -> None:
    trials = trials_of(tmp_path, {(100, 1.0): [0.5, 0.8, 0.6, 0.6, 0.9]})
    mean = summarise(trials).iloc[0]
    assert mean["centre"] == mean["selection_accuracy"] == pytest.approx(0.68)
    assert (mean["minimum"], mean["maximum"], mean["repeats"]) == (0.5, 0.9, 5)
    median = summarise(trials, "median").iloc[0]
    assert median["centre"] == pytest.approx(0.6)
    assert median["selection_accuracy"] == pytest.approx(0.68)  # the choice is by the mean
    row = choose(trials_of(tmp_path / "one", {(100, 1.0): [0.5]}), by=["problem"]).iloc[0]
    assert (row["centre"], row["minimum"], row["maximum"], row["repeats"]) == (0.5, 0.5, 0.5, 1)
    assert math.isnan(row["cross_fitted"])  # no seed is left to measure


def test_a_repeat_without_accuracy_leaves_no_mean(tmp_path: Path) -> None:
    accuracies = {(100, 1.0): [0.5, nan], (100, 2.0): [nan, 0.6]}
    trials = trials_of(tmp_path, accuracies, clipping_bound=[1.0, 2.0])
    cells = summarise(trials)
    accuracies = cells[["centre", "minimum", "maximum", "selection_accuracy"]]
    assert accuracies.isna().all(axis=None)
    assert cells["diverged"].tolist() == [1, 1]
    assert cells["repeats"].tolist() == [2, 2]


def test_joint_tuning_is_by_the_mean_over_all_repeats(tmp_path: Path) -> None:
    trials = trials_of(
        tmp_path,
        {
            (100, 1.0): [0.6, 0.1],  # the first seed's favourite
            (200, 1.0): [0.5, 0.9],  # has the better mean
            (100, 2.0): [nan, 0.9],  # never chosen
            (200, 2.0): [0.4, 0.4],
        },
        batch_size=[100, 200],
        clipping_bound=[1.0, 2.0],
    )
    tuned = choose(trials, by=["clipping_bound"])
    assert tuned["clipping_bound"].tolist() == [1.0, 2.0]
    assert tuned["batch_size"].tolist() == [200, 200]
    np.testing.assert_allclose(tuned["centre"], [0.7, 0.4])


def test_ties_go_to_the_smaller_batch_then_the_smaller_bound(tmp_path: Path) -> None:
    everywhere = {(b, c): [0.5] for b in (100, 200) for c in (1.0, 2.0)}
    trials = trials_of(tmp_path, everywhere, batch_size=[100, 200], clipping_bound=[1.0, 2.0])
    trials = trials.iloc[::-1]  # the order of rows must not matter
    chosen = choose(trials, by=["problem"]).iloc[0]
    assert chosen[["batch_size", "clipping_bound"]].tolist() == [100, 1]
    assert choose(trials, by=["clipping_bound"])["batch_size"].tolist() == [100, 100]
    diverged = {(100, 1.0): [nan], (200, 1.0): [nan]}  # wins only against other NaNs
    trials = trials_of(tmp_path / "nan", diverged, batch_size=[100, 200])
    assert choose(trials, by=["clipping_bound"])["batch_size"].tolist() == [100]


def test_held_out_examples_choose_and_test_accuracies_are_reported(tmp_path: Path) -> None:
    def outcome(cell: Cell, rate: float, seed: int) -> dict[str, Any]:
        on_test = {(100, 0.01): 0.9, (100, 0.02): 0.5, (200, 0.01): 0.6, (200, 0.02): 0.7}
        accuracy = on_test[int(cell.batch_size), rate]
        return {"macro_accuracy": accuracy, "selection_accuracy": 1 - accuracy}

    grid = {"learning_rate": [0.01, 0.02], "batch_size": [100, 200], "seeds": 2}
    trials = trials_of(tmp_path, outcome, **grid)
    (chosen,) = choose(trials, by=["epsilon", "clipping_bound"]).to_dict("records")
    assert (chosen["batch_size"], chosen["learning_rate"]) == (100, 0.02)
    assert chosen["selection_accuracy"] == chosen["centre"] == chosen["cross_fitted"] == 0.5


def test_a_trial_of_two_sweeps_is_one_repeat(tmp_path: Path) -> None:
    study = make_study({"one": {"seeds": 2}, "two": {"seeds": 2}})
    write_cells(
        study,
        Paths(tmp_path),
        lambda cell, rate, seed: {"trial_key": f"{cell.name}/{rate}/{seed}"},
    )
    cells = [cell for sweep in study.sweeps for cell in study.sweep_cells(sweep)]
    trials = load_trials(study, Paths(tmp_path), cells)
    assert len(repeats(trials)) == 2
    assert choose(trials, by=["epsilon"])["repeats"].tolist() == [2]


# -- cross-fitting -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("selection", "accuracy", "expected"),
    [
        # Without seed 2: means 0.75 and 0.4, so the first cell; its accuracy with seed 2 is 0.1.
        # Without seed 3: means 0.5 and 0.45, again the first cell: 0.6. Seed 1 never measures.
        ([[0.9, 0.1, 0.6], [0.2, 0.7, 0.6]], [[0.9, 0.1, 0.6], [0.2, 0.7, 0.6]], (0.1 + 0.6) / 2),
        # The first seed chooses the first cell both times.
        ([[9.0, 0.5, 0.5], [0.0, 0.6, 0.6]], [[9.0, 0.5, 0.5], [0.0, 0.6, 0.6]], 0.5),
        # Selection accuracies choose, test accuracies measure.
        ([[0.1, 0.1, 0.1], [0.2, 0.2, 0.2]], [[0.9, 0.9, 0.9], [0.3, 0.4, 0.5]], 0.45),
    ],
)
def test_cross_fitting_by_hand(
    selection: list[list[float]], accuracy: list[list[float]], expected: float
) -> None:
    assert cross_fitted(np.array(selection), np.array(accuracy)) == pytest.approx(expected)


def test_the_mean_of_a_choice_is_optimistic_and_the_cross_fitted_one_is_not() -> None:
    # 40 equal cells of true accuracy 0.5; the first seed has the best of 8 learning rates.
    random = np.random.default_rng(1)
    noise = random.normal(0.5, 0.01, (2000, 40, 3))
    noise[:, :, 0] = random.normal(0.5, 0.01, (2000, 40, 8)).max(axis=2)
    flattering = np.mean([grid[best_by_mean(grid)].mean() for grid in noise])
    honest = np.array([cross_fitted(grid, grid) for grid in noise])
    assert flattering > 0.51
    assert abs(honest.mean() - 0.5) < 3 * honest.std() / np.sqrt(honest.size)


def test_while_seeds_are_added_only_seeds_of_all_cells_are_used(tmp_path: Path) -> None:
    accuracies = {(100, 1.0): [0.5, 0.6, 0.1], (200, 1.0): [0.4, 0.7, 0.9]}
    trials = trials_of(tmp_path, accuracies, batch_size=[100, 200])
    some = trials[~((trials["batch_size"] == 200) & (trials["seed"] == 3))]
    two = trials[trials["seed"] <= 2]
    found, wanted = (choose(each, by=["problem"]) for each in (some, two))
    assert found["cross_fitted"].item() == wanted["cross_fitted"].item() == 0.6
