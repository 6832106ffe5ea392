"""Figures of the theory, from gradients with optimal clipping bounds in closed form."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.synthetic import make_study, write_cells, write_overlaps

from dpsweep.analysis.predictions import FIXED, HINDSIGHT, PREDICTIONS
from dpsweep.study import Cell, Study
from dpsweep.study.paths import Paths

GRID = {
    "epsilon": [1.0, 2.0, 8.0], "epochs": [2], "batch_size": [8],
    "clipping_bound": [0.1, 1.0, 10.0], "seeds": 2,
}  # fmt: skip
DIMENSION = 100
SIGMA = {1.0: 8.0, 2.0: 4.0, 8.0: 1.0}
NORM = {1.0: 30.0, 2.0: 20.0, 8.0: 10.0}


def study_with(family: str, *panels: dict[str, Any]) -> Study:
    sweeps = {"s": GRID, "auto": GRID | {"clipping_bound": "automatic"}}
    target = {"family": family, "caption": "c", "section": "s", "panels": list(panels)}
    return make_study(sweeps, figures={"f": target})


def equal_gradients(norm: float, examples: int = 8) -> np.ndarray:
    gradients = np.zeros((examples, DIMENSION))
    gradients[:, 0] = norm
    return gradients


def closed_form(norm: float, sigma: float, examples: int = 8) -> float:
    return examples**2 * norm / (examples**2 + sigma**2 * DIMENSION)


def draw(study: Study, folder: Path, accuracy: Any = None, examples: int = 8) -> pd.DataFrame:
    paths, figure = Paths(folder), study.figures["f"]
    write_cells(
        study,
        paths,
        lambda cell, *_: {"macro_accuracy": accuracy(cell) if accuracy else 0.5},
    )
    for cell in study.sweep_cells("s"):
        if cell.clipping_bound == 1.0:
            measured = [[equal_gradients(NORM[cell.epsilon], examples)] * 2] * 3
            write_overlaps(study, paths, cell, SIGMA[cell.epsilon], measured)
    numbers = figure.compute(study, paths)
    figure.plot(numbers)
    assert set(numbers["privacy"]) == {"not private"}
    return numbers


AT_ONE = {"clipping_bound": 1.0, "title": "t"}


def test_noise_scales_with_the_number_of_measured_examples(tmp_path: Path) -> None:
    found = draw(study_with("optimal_clipping_trace", AT_ONE), tmp_path, examples=2)
    tight = found[found["epsilon"] == 1.0].iloc[0]
    # Two of eight examples with a quarter of the noise have the same C*.
    assert tight["best_bound"] == pytest.approx(closed_form(30, 8 * 2 / 8, 2))
    assert tight["best_bound"] == pytest.approx(closed_form(30, 8))


def test_predictions_are_compared_with_measured_bounds(tmp_path: Path) -> None:
    def accuracy(cell: Cell) -> float:
        if cell.clipping_bound == "automatic":
            return 0.4
        # At epsilon 1 the largest bound is the best one, otherwise 1 is.
        best = 10.0 if cell.epsilon == 1 else 1.0
        return 0.9 - 0.1 * abs(np.log10(float(cell.clipping_bound) / best))

    panels: tuple[dict[str, Any], ...] = (
        {"title": "t"},
        {"title": "a", "clipping_bound": "automatic"},
    )
    study = study_with("predicted_clipping", *panels)
    found = draw(study, tmp_path, accuracy).set_index(["rule", "epsilon"])
    theorem, held, free = PREDICTIONS
    wanted = {1.0: closed_form(30, 8), 2.0: closed_form(20, 4), 8.0: closed_form(10, 1)}
    for epsilon, value in wanted.items():
        assert found.loc[(theorem, epsilon), "predicted"] == pytest.approx(value)
        assert found.loc[(held, epsilon), "predicted"] == pytest.approx(
            closed_form(NORM[epsilon], SIGMA[8.0])
        )
        assert found.loc[(free, epsilon), "predicted"] == pytest.approx(NORM[epsilon])
        assert found.loc[("AUTO-S", epsilon), "lost"] == pytest.approx(0.5)
    # C* is 0.30, 0.77 and 3.9: on the grid 0.1 (log-nearest to 0.30), 1 and 10.
    assert found.loc[theorem, "grid_bound"].to_dict() == {1.0: 0.1, 2.0: 1.0, 8.0: 10.0}
    assert found.loc[theorem, "lost"].tolist() == pytest.approx([0.2, 0.0, 0.1])
    assert found.loc[theorem, "mean_lost"].iloc[0] == pytest.approx(0.1)
    assert found.loc[(theorem, 1.0), "rank_correlation"] < 0
    assert found.loc[(free, 1.0), "rank_correlation"] > 0
    assert found.loc[FIXED, "lost"].tolist() == pytest.approx([0.1, 0.0, 0.0])
    assert found.loc[HINDSIGHT, "predicted"].unique().tolist() == [1.0]
    assert bool(found.loc[(free, 1.0), "measured_on_plateau"])
    # One problem at three epsilons gives no intervals for other problems.
    assert found[["settings", "problems"]].drop_duplicates().to_numpy().tolist() == [[3, 1]]
    assert found[["mean_lost_lower", "rank_correlation_upper"]].isna().all(axis=None)
