"""Selection on held-out examples: they are not trained on, and noise is calibrated for the others."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.training.tiny_study import N, Prepared, calibrate

from dpsweep.privacy import CalibrationError
from dpsweep.privacy.record import write_calibration
from dpsweep.study import Cell
from dpsweep.study.datasets import held_out_rows
from dpsweep.training.cell import cell_noise
from dpsweep.training.store import StoredTrial
from dpsweep.training.trial import train_trial

SHARE = 0.2
HELD_OUT = len(held_out_rows(N, SHARE))
CELL = Cell("digits_vit_method", 8.0, 1, "full", 1.0)


@pytest.fixture
def made(tiny: Prepared, tmp_path: Path) -> Prepared:
    training = {"select_on": "holdout", "holdout_share": SHARE}
    return tiny.of(training, {"kind": "all"}).copied(tmp_path)


def train(made: Prepared) -> tuple[StoredTrial, Any]:
    return train_trial(made.spec(steps=3), made.context(), None, 1e9)


def test_noise_is_calibrated_for_the_training_examples(made):
    study, paths = made.study, made.paths
    kept, held_out = made.data.hold_out(SHARE)
    assert sorted([*kept, *held_out]) == list(range(N)) and len(held_out) == HELD_OUT
    assert study.train_size("digits") == study.batch_size(CELL) == N - HELD_OUT
    path = paths.noise(study, "digits", 8.0, 1, "full")
    write_calibration(path, calibrate(8.0, 1e-5, N, N, 1))
    with pytest.raises(CalibrationError, match=f"train_size: found {N}, expected"):
        cell_noise(study, paths, CELL)
    noise = calibrate(8.0, 1e-5, N - HELD_OUT, N - HELD_OUT, 1)
    write_calibration(path, noise)
    assert cell_noise(study, paths, CELL) == noise


def test_held_out_examples_affect_selection_and_not_parameters(made):
    data = made.data
    trial, parameters = train(made)
    _, held_out = data.hold_out(SHARE)
    kept = np.setdiff1d(np.arange(N), held_out)
    assert trial.steps["sampled_examples"].tolist() == [N - HELD_OUT] * 3
    for rows, moves in ((held_out, False), (kept[:1], True)):
        inputs, labels = data.train_inputs.copy(), data.train_labels.copy()
        inputs[rows] = 255 - inputs[rows]
        labels[rows] = 0  # changes the accuracy on them
        other = replace(data, train_inputs=inputs, train_labels=labels)
        changed, found = train(made._replace(data=other))
        same = all(np.array_equal(found[name], parameters[name]) for name in parameters)
        assert same == (not moves)
        if not moves:
            assert changed.record["macro_accuracy"] == trial.record["macro_accuracy"]
            assert changed.record["selection_accuracy"] != trial.record["selection_accuracy"]
