"""Effects on classes of a sweep with known results."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.figures.test_numbers import figure
from tests.synthetic import make_study, write_cells, write_dataset, write_gradient_norms

from dpsweep.base.parquet import UnreadableResultsError
from dpsweep.figures import draw
from dpsweep.study import Cell, Study
from dpsweep.study.paths import Paths

nan = math.nan


def drawn(study: Study, paths: Paths) -> pd.DataFrame:
    draw(study, paths, "drawn")
    return pd.read_csv(paths.figure("drawn", "csv"))


def per_class_study(bounds: list[float] | float = [0.1, 1.0], **settings: Any) -> Study:  # noqa: B006
    panel = {"title": "Digits", "clipping_bound": bounds}
    return make_study(
        {"s": {"epochs": [2], "clipping_bound": [0.1, 1.0], "batch_size": [100, 200], "seeds": 2}},
        classes=3,
        figures=figure("per_class", baseline=1.0, panels=[panel], **settings),
    )


ACCURACIES = {1.0: [0.3, 0.9, 0.5], 0.1: [0.1, 0.8, 0.7]}


def write_per_class(
    study: Study, paths: Paths, norms_of: int = 200, accuracies: Any = ACCURACIES
) -> None:
    def outcome(cell: Cell, rate: float, seed: int) -> dict[str, Any]:
        if cell.batch_size == 100:
            return {"macro_accuracy": 0.1}
        per_class = accuracies[float(cell.clipping_bound)]
        return {
            "macro_accuracy": 0.5,
            "per_class_accuracy": [a - 0.1 * (seed == 2) for a in per_class],
        }

    write_cells(study, paths, outcome)
    write_dataset(paths, "digits", [2, 2, 2])
    labels = [0, 0, 1, 1, 2, 2]
    norms = {1.0: [1, 4, 2, 2, 10, 10], 0.1: [1, 1, 0.2, 0.2, 0.1, 0.05]}
    for cell in study.sweep_cells("s"):
        if cell.batch_size == norms_of:
            values = norms[float(cell.clipping_bound)]
            earlier = [5.0] * 6  # after the first epoch: not what is drawn
            write_gradient_norms(study, paths, cell, 0.01, [(labels, earlier), (labels, values)])


def test_per_class_numbers_by_hand(tmp_path: Path) -> None:
    study, paths = per_class_study(), Paths(tmp_path)
    write_per_class(study, paths)
    numbers = drawn(study, paths).set_index(["clipping_bound", "class_rank"])
    base, small = numbers.loc[1.0], numbers.loc[0.1]
    # By falling accuracy at C = 1 (0.9, 0.5, 0.3), in both lines, of the first seed.
    assert base["class"].tolist() == small["class"].tolist() == [1, 2, 0]
    assert base["class_name"].tolist() == ["one", "two", "zero"]
    assert small["accuracy_difference"].tolist() == pytest.approx([-0.1, 0.2, -0.2])
    assert base["accuracy_difference"].tolist() == [0, 0, 0]
    # Retained at C = 1: (1 + 1/4)/2, 1/2, 1/10; the largest, 0.625, is the unit.
    assert base["retained_weight"].tolist() == pytest.approx([0.5, 0.1, 0.625])
    assert base["relative_retained_weight"].tolist() == pytest.approx([0.8, 0.16, 1.0])
    # Retained at C = 0.1: 0.1, 1/2, 1.
    assert small["relative_retained_weight"].tolist() == pytest.approx([0.8, 1.6, 0.16])
    assert set(numbers["batch_size"]) == {200}


def test_a_class_without_test_examples_is_named_but_not_drawn(tmp_path: Path) -> None:
    study, paths = per_class_study(), Paths(tmp_path)
    write_per_class(study, paths, accuracies={1.0: [0.3, math.nan, 0.5], 0.1: [0.1, math.nan, 0.7]})
    numbers = drawn(study, paths).set_index(["clipping_bound", "class"])
    assert numbers.loc[1.0]["class_rank"].dropna().to_dict() == {2: 1, 0: 2}, "easy to hard"
    assert np.isnan(numbers.loc[(1.0, 1), "class_rank"])
    figure = study.figures["drawn"].plot(pd.read_csv(paths.figure("drawn", "csv")))
    labels = [each.get_text() for each in figure.axes[-1].get_xticklabels()]
    assert labels == ["two", "zero"]
    assert "no test example: one." in figure.get_supxlabel().replace("\n", " ")
    for line in (line for axes in figure.axes for line in axes.get_lines()):
        assert set(line.get_xdata()) <= {0, 1, 2}


def test_retained_weight_of_the_classifier(tmp_path: Path) -> None:
    study, paths = per_class_study(retained_weight_of="classifier"), Paths(tmp_path)
    write_per_class(study, paths)
    base = drawn(study, paths).query("clipping_bound == 1.0")
    # The classifier's norms are half of those above: 1/2, 2; 1, 1; 5, 5.
    assert base["retained_weight"].tolist() == pytest.approx([1.0, 0.2, 0.75])


def test_gradient_norms_of_another_trial_are_refused(tmp_path: Path) -> None:
    study, paths = per_class_study(), Paths(tmp_path)
    write_per_class(study, paths, norms_of=100)
    with pytest.raises(
        UnreadableResultsError,
        match=r"of digits_small_film at C = 0.1 is digits_small_film/eps8_epochs2_B200_C0\.1",
    ):
        draw(study, paths, "drawn")
