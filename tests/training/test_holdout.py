"""Selecting on held-out training examples: they are not trained on, and noise is for the rest."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.training.tiny_study import N, Prepared, tiny_study

from dpsweep.config.shares import held_out_rows
from dpsweep.privacy import CalibrationError
from dpsweep.privacy.calibration import calibrate
from dpsweep.privacy.stored import write_calibration
from dpsweep.study import Cell
from dpsweep.training.cell import OpenCell, run_cell
from dpsweep.training.specification import CellError, cell_noise
from dpsweep.training.store import StoredTrial
from dpsweep.training.trial import train_trial

SHARE = 0.2
HELD_OUT = len(held_out_rows(N, SHARE))
TRAINING = {"select_on": "holdout", "holdout_share": SHARE}
CELL = Cell("digits_vit_method", 8.0, 1, "full", 1.0)


@pytest.fixture
def made(tiny: Prepared, tmp_path: Path) -> Prepared:
    return tiny.of(TRAINING, {"kind": "all"}).copied(tmp_path)


def train(made: Prepared) -> tuple[StoredTrial, Any]:
    return train_trial(made.spec(steps=3), made.context(), None, 1e9)


def test_a_share_that_holds_out_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"holdout_share: found 1e-06, which leaves no example of"):
        tiny_study({"select_on": "holdout", "holdout_share": 1e-6}, {"kind": "all"})


def test_noise_is_for_the_examples_that_are_trained_on(made: Prepared) -> None:
    study, paths = made.study, made.paths
    kept, held_out = made.data.hold_out(SHARE)
    assert sorted([*kept, *held_out]) == list(range(N)) and len(held_out) == HELD_OUT
    assert study.train_size("digits") == study.batch_size(CELL) == N - HELD_OUT
    path = paths.noise(study, "digits", 8.0, 1, "full")
    for size in (N, N - HELD_OUT):
        noise = calibrate(8.0, 1e-5, size, size, 1)
        write_calibration(path, noise)
        if size == N:
            with pytest.raises(CalibrationError, match=f"train_size: found {N}, expected"):
                cell_noise(study, paths, CELL)
    assert cell_noise(study, paths, CELL) == noise


@pytest.mark.parametrize("difference", [-30, 30])
def test_data_of_another_size_than_the_noise_is_refused(made: Prepared, difference: int) -> None:
    study, paths = made.study, made.paths
    dataset = study.datasets["digits"].model_copy(update={"train_size": N + difference})
    edited = study.model_copy(update={"datasets": {**study.datasets, "digits": dataset}})
    size = edited.train_size("digits")
    noise = calibrate(8.0, study.privacy.delta, size, size, 1)
    write_calibration(paths.noise(edited, "digits", 8.0, 1, "full"), noise)
    with pytest.raises(CellError, match=f"expected {size}"):
        run_cell(OpenCell.open(edited, paths, CELL), paths, edited)


def test_held_out_examples_leave_no_trace_in_the_parameters(made: Prepared) -> None:
    data = made.data
    trial, parameters = train(made)
    _, held_out = data.hold_out(SHARE)
    kept = np.setdiff1d(np.arange(N), held_out)
    assert trial.steps["sampled_examples"].tolist() == [N - HELD_OUT] * 3
    for rows, moves in ((held_out, False), (kept[:1], True)):
        inputs, labels = data.train_inputs.copy(), data.train_labels.copy()
        inputs[rows] = 255 - inputs[rows]
        labels[rows] = 0  # so that accuracy on them is that of one class
        other = replace(data, train_inputs=inputs, train_labels=labels)
        changed, found = train(made._replace(data=other))
        same = all(np.array_equal(found[name], parameters[name]) for name in parameters)
        assert same == (not moves)
        if not moves:
            assert changed.record["macro_accuracy"] == trial.record["macro_accuracy"]
            assert changed.record["selection_accuracy"] != trial.record["selection_accuracy"]


def test_selection_looks_at_the_test_set_unless_told_otherwise(made: Prepared) -> None:
    training = made.study.training.model_copy(update={"select_on": "test"})
    on_test = made.study.model_copy(update={"training": training})
    assert on_test.train_size("digits") == N
    record = train(made._replace(study=on_test))[0].record
    assert record["selection_accuracy"] == record["macro_accuracy"]
    assert record["trial_key"] != made.spec(steps=3).key
