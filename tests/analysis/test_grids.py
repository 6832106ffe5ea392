import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.synthetic import make_study, write_cells

from dpsweep.analysis.frames import load_trials
from dpsweep.analysis.statistics import alike, best, grids, without_diverged
from dpsweep.study import Cell
from dpsweep.study.paths import Paths


def trials(tmp_path: Path, sweeps: dict[str, dict[str, Any]], outcome: Any) -> pd.DataFrame:
    study, paths = make_study(sweeps), Paths(tmp_path)
    write_cells(study, paths, outcome)
    return load_trials(
        study, paths, [cell for name in study.sweeps for cell in study.sweep_cells(name)]
    )


def number(cell: Cell, rate: float, seed: int) -> dict[str, Any]:
    size = 1000 if cell.batch_size == "full" else cell.batch_size
    bound = 0 if isinstance(cell.clipping_bound, str) else cell.clipping_bound
    value = size + bound + seed / 10
    return {"macro_accuracy": value, "selection_accuracy": -value}


def test_grids_contain_each_repeat_at_its_position(tmp_path: Path) -> None:
    sweep = {"batch_size": [100, "full"], "clipping_bound": [1.0, 2.0, 4.0], "seeds": 2}
    (found,) = grids(trials(tmp_path, {"s": sweep}, number))
    assert (found.batch_size, found.clipping_bound) == ((100, 1000), (1.0, 2.0, 4.0))
    expected = np.array(
        [[[b + c + s / 10 for s in (1, 2)] for c in (1, 2, 4)] for b in (100, 1000)]
    )
    np.testing.assert_allclose(found.accuracy, expected)
    np.testing.assert_allclose(found.selection, -expected)
    assert found.choice() == (0, 0)
    assert found.reached == 101.15
    # Learning rates of the first seed.
    np.testing.assert_allclose(found.tuning, -expected[..., :1])


def test_cells_that_two_sweeps_share_are_one_grid(tmp_path: Path) -> None:
    sweeps: dict[str, dict[str, Any]] = {
        "wide": {"clipping_bound": [1.0, 2.0, 4.0], "epsilon": [8.0]},
        "long": {"clipping_bound": [1.0, 2.0], "epsilon": [1.0, 8.0]},
        # These two have no grid.
        "auto": {"clipping_bound": "automatic", "batch_size": [100, 200]},
        "free": {"clipping_bound": "none", "epsilon": [math.inf]},
    }
    rows = trials(tmp_path, sweeps, number)
    found = {grid.epsilon: grid for grid in grids(rows, {str(rows["dataset"].iloc[0]): 450})}
    assert {epsilon: grid.clipping_bound for epsilon, grid in found.items()} == {
        8.0: (1.0, 2.0, 4.0),
        1.0: (1.0, 2.0),
    }
    assert [each.test_size for each in (found[8.0], *grids(rows))] == [450, math.inf, math.inf]
    assert len(alike(found.values(), "epsilon")) == 1
    nothing = rows.assign(macro_accuracy=math.nan, selection_accuracy=math.nan)
    assert grids(nothing) == grids(nothing.iloc[:0]) == []


def test_a_missing_cell_is_nan_and_never_chosen(tmp_path: Path) -> None:
    sweep = {"batch_size": [100, 200], "clipping_bound": [1.0, 2.0], "seeds": 2}
    rows = trials(tmp_path, {"s": sweep}, number)
    (whole,) = grids(rows)
    assert whole.choice() == (0, 0)
    (found,) = grids(rows[rows["cell"] != "eps8_epochs2_B100_C1"])
    assert np.isnan(found.accuracy).sum() == 2
    assert found.choice() == (0, 1)
    assert found.complete("batch_size") == {200}
    assert found.complete("clipping_bound") == {2.0}


def test_ties_go_to_the_smallest_batch_size_then_bound() -> None:
    accuracy = np.array([[0.1, 0.5, 0.5], [0.5, 0.2, np.nan]])
    assert best(accuracy) == (0, 1)
    np.testing.assert_array_equal(best(np.stack([accuracy, -accuracy])), [[0, 0], [1, 0]])


def test_a_diverged_seed_is_replaced_by_the_mean_of_the_others() -> None:
    accuracy = np.full((3, 3, 4), 0.8) + np.arange(4) / 1000
    accuracy[1, 2, 3] = 0.02
    found = without_diverged(accuracy)
    assert found[1, 2, 3] == pytest.approx(0.801)
    accuracy[1, 2, 3] = found[1, 2, 3]
    np.testing.assert_array_equal(found, accuracy)
    # If all seeds scatter that much, none counts as diverged.
    noisy = np.random.default_rng(0).normal(0.5, 0.05, (4, 4, 5))
    assert without_diverged(noisy) is noisy
