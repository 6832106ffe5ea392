import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.synthetic import make_study, write_cells

from dpsweep.analysis.frames import load_trials
from dpsweep.analysis.selection import best_batch_sizes, repeats, summarise, tune
from dpsweep.study import Cell, Study
from dpsweep.study.paths import Paths

nan = math.nan


def trials_of(
    tmp_path: Path, accuracies: dict[tuple[Any, float], list[float]], **sweep: Any
) -> pd.DataFrame:
    """Trials of one sweep over (B, C); the list holds the accuracy of every seed at rate 0.01."""
    study = make_study({"s": sweep | {"seeds": len(next(iter(accuracies.values())))}})
    paths = Paths(tmp_path)

    def outcome(cell: Cell, rate: float, seed: int) -> dict[str, Any]:
        accuracy = accuracies[cell.batch_size, float(cell.clipping_bound)][seed - 1]
        return {"macro_accuracy": accuracy, "diverged": math.isnan(accuracy)}

    write_cells(study, paths, outcome)
    return load_trials(paths, study.sweep_cells("s"))


def test_repeats_are_the_trials_at_the_rate_that_the_first_seed_found_best(tmp_path: Path) -> None:
    study = make_study({"s": {"learning_rate": [0.01, 0.02, 0.04], "seeds": 3}})
    score = {0.01: 0.5, 0.02: 0.7, 0.04: 0.7}  # a tie: the smaller rate
    write_cells(
        study,
        Paths(tmp_path),
        lambda cell, rate, seed: {"macro_accuracy": score[rate] - 0.1 * (seed == 2)},
    )
    trials = load_trials(Paths(tmp_path), study.sweep_cells("s"))
    chosen = repeats(trials)
    assert chosen["learning_rate"].tolist() == [0.02] * 3
    assert chosen["seed"].tolist() == [1, 2, 3]
    np.testing.assert_allclose(chosen["macro_accuracy"], [0.7, 0.6, 0.7])


def test_centre_and_band_over_repeats(tmp_path: Path) -> None:
    trials = trials_of(tmp_path, {(100, 1.0): [0.5, 0.8, 0.6, 0.6, 0.9]})
    mean = summarise(trials).iloc[0]
    assert mean["centre"] == pytest.approx(0.68)
    assert (mean["minimum"], mean["maximum"], mean["repeats"]) == (0.5, 0.9, 5)
    assert mean["first_seed"] == 0.5
    assert summarise(trials, "median").iloc[0]["centre"] == pytest.approx(0.6)


def test_one_seed_is_its_own_centre_and_band(tmp_path: Path) -> None:
    row = summarise(trials_of(tmp_path, {(100, 1.0): [0.5]})).iloc[0]
    assert (row["centre"], row["minimum"], row["maximum"], row["repeats"]) == (0.5, 0.5, 0.5, 1)


def test_a_repeat_without_accuracy_leaves_no_mean(tmp_path: Path) -> None:
    trials = trials_of(
        tmp_path,
        {(100, 1.0): [0.5, nan], (100, 2.0): [nan, 0.6]},
        clipping_bound=[1.0, 2.0],
    )
    cells = summarise(trials)
    assert cells[["centre", "minimum", "maximum"]].isna().all(axis=None)
    assert cells["diverged"].tolist() == [1, 1]
    assert cells["repeats"].tolist() == [2, 2]
    np.testing.assert_array_equal(cells["first_seed"], [0.5, nan])  # not the next seed's 0.6


def test_joint_tuning_is_by_the_first_seed_alone(tmp_path: Path) -> None:
    trials = trials_of(
        tmp_path,
        {
            (100, 1.0): [0.6, 0.1],  # chosen for C = 1, though its mean is worse
            (200, 1.0): [0.5, 0.9],
            (100, 2.0): [nan, 0.9],  # never chosen
            (200, 2.0): [0.4, 0.4],
        },
        batch_size=[100, 200],
        clipping_bound=[1.0, 2.0],
    )
    tuned = tune(summarise(trials), by=["clipping_bound"])
    assert tuned["clipping_bound"].tolist() == [1.0, 2.0]
    assert tuned["batch_size"].tolist() == [100, 200]
    np.testing.assert_allclose(tuned["centre"], [0.35, 0.4])


def test_ties_go_to_the_smaller_batch_then_the_smaller_bound(tmp_path: Path) -> None:
    everywhere = {(b, c): [0.5] for b in (100, 200) for c in (1.0, 2.0)}
    trials = trials_of(tmp_path, everywhere, batch_size=[100, 200], clipping_bound=[1.0, 2.0])
    cells = summarise(trials).iloc[::-1]  # the order of rows must not matter
    assert tune(cells, by=["sweep"]).iloc[0][["batch_size", "clipping_bound"]].tolist() == [100, 1]
    assert tune(cells, by=["clipping_bound"])["batch_size"].tolist() == [100, 100]


def test_a_nan_wins_only_where_there_is_nothing_else(tmp_path: Path) -> None:
    trials = trials_of(tmp_path, {(100, 1.0): [nan], (200, 1.0): [nan]}, batch_size=[100, 200])
    tuned = tune(summarise(trials), by=["clipping_bound"])
    assert len(tuned) == 1
    assert tuned["batch_size"].item() == 100


def test_every_seed_has_its_own_best_batch_size(tmp_path: Path) -> None:
    trials = trials_of(
        tmp_path,
        {
            (100, 1.0): [0.5, 0.5, 0.5],
            (200, 1.0): [0.4, 0.6, nan],
            (100, 2.0): [0.3, 0.3, 0.5],
            ("full", 2.0): [0.3, 0.3, 0.5],
            (200, 2.0): [0.45, 0.3, 0.2],
            ("full", 1.0): [0.5, nan, 0.1],
        },
        batch_size=[100, 200, "full"],
        clipping_bound=[1.0, 2.0],
    )
    best = best_batch_sizes(trials)
    # Seed 1: 0.5 at 100 and at full, the smaller wins. Seed 2: 200. Seed 3: 0.5 thrice, 100.
    assert best["seed"].tolist() == [1, 2, 3]
    assert best["batch_size"].tolist() == [100, 200, 100]


def test_summaries_of_no_trials_are_empty(tmp_path: Path) -> None:
    study: Study = make_study({"s": {}})
    trials = load_trials(Paths(tmp_path), study.sweep_cells("s"), missing=[])
    assert tune(summarise(trials), by=["clipping_bound"]).empty
    assert best_batch_sizes(trials).empty


def test_held_out_examples_choose_and_the_test_set_is_reported(tmp_path: Path) -> None:
    study = make_study({"s": {"learning_rate": [0.01, 0.02], "batch_size": [100, 200]}})

    def outcome(cell: Cell, rate: float, seed: int) -> dict[str, Any]:
        on_test = {(100, 0.01): 0.9, (100, 0.02): 0.5, (200, 0.01): 0.6, (200, 0.02): 0.7}
        accuracy = on_test[int(cell.batch_size), rate]
        return {"macro_accuracy": accuracy, "selection_accuracy": 1 - accuracy}

    write_cells(study, Paths(tmp_path), outcome)
    trials = load_trials(Paths(tmp_path), study.sweep_cells("s"))
    (chosen,) = tune(summarise(trials), by=["epsilon", "clipping_bound"]).to_dict("records")[:1]
    assert (chosen["batch_size"], chosen["learning_rate"]) == (100, 0.02)
    assert (chosen["first_seed"], chosen["centre"]) == (0.5, 0.5)
    winners = best_batch_sizes(trials)
    assert winners["batch_size"].unique().tolist() == [100]
