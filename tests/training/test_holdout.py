"""Selecting on held-out training examples: they are not trained on, and noise is for the rest."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.training.tiny_study import N, prepare, tiny_study

from dpsweep.data.prepared import DatasetError, PreparedDataset
from dpsweep.files import write_json
from dpsweep.models.backbone import PreparedBackbone
from dpsweep.privacy import calibrate
from dpsweep.study import Cell, Study
from dpsweep.study.paths import Paths
from dpsweep.training.cell import run_cell
from dpsweep.training.context import TrialContext
from dpsweep.training.specification import CellError, read_calibration, specify
from dpsweep.training.store import StoredTrial
from dpsweep.training.trial import train_trial

CPU = torch.device("cpu")
HELD_OUT = 54  # a share of 0.2, rounded
CELL = Cell("digits", 8.0, 1, "full", 1.0)


@pytest.fixture(scope="module")
def study() -> Study:
    return tiny_study({"select_on": "holdout", "holdout_share": 0.2}, {"kind": "all"})


@pytest.fixture(scope="module")
def paths(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Paths:
    return prepare(study, tmp_path_factory.mktemp("holdout"))[0]


@pytest.fixture(scope="module")
def prepared(paths: Paths) -> tuple[PreparedDataset, PreparedBackbone]:
    return (
        PreparedDataset.open(paths.dataset("digits")),
        PreparedBackbone.open(paths.backbone("vit")),
    )


def train(
    study: Study, data: PreparedDataset, backbone: PreparedBackbone, folder: Path
) -> tuple[StoredTrial, Any]:
    noise = calibrate(8.0, 1e-5, study.train_size("digits"), study.batch_size(CELL), 3)
    spec = specify(study, CELL, noise, data, backbone, CPU, 0.003, seed=1)
    context = TrialContext(
        data, backbone, study.methods["method"], study.holdout_size("digits"), CPU
    )
    return train_trial(spec, context, folder / "checkpoint", 1e9)


def test_the_split_covers_the_training_set_with_classes_in_proportion(
    prepared: tuple[PreparedDataset, PreparedBackbone],
) -> None:
    data = prepared[0]
    kept, held_out = data.hold_out(HELD_OUT)
    assert len(held_out) == HELD_OUT
    assert sorted([*kept, *held_out]) == list(range(N))
    shares = np.bincount(data.train_labels[held_out]) / np.bincount(data.train_labels)
    assert (abs(shares - 0.2) < 0.04).all()
    assert data.hold_out(0)[0].tolist() == list(range(N))
    with pytest.raises(DatasetError, match="holdout_share"):
        data.hold_out(5)  # of ten classes


def test_noise_is_for_the_examples_that_are_trained_on(study: Study, paths: Paths) -> None:
    assert study.train_size("digits") == study.batch_size(CELL) == N - HELD_OUT
    path = paths.noise("digits", 8.0, 1, "full")
    for size in (N, N - HELD_OUT):
        noise = calibrate(8.0, 1e-5, size, size, 1)
        write_json(path, {"calibration": noise.to_dict()})
        if size == N:
            with pytest.raises(CellError, match="delete it"):
                read_calibration(study, paths, CELL)
    assert read_calibration(study, paths, CELL) == noise


@pytest.mark.parametrize("difference", [-30, 30])
def test_data_of_another_size_than_the_noise_is_refused(
    study: Study, paths: Paths, difference: int
) -> None:
    dataset = study.datasets["digits"].model_copy(update={"train_size": N + difference})
    edited = study.model_copy(update={"datasets": {**study.datasets, "digits": dataset}})
    size = edited.train_size("digits")
    noise = calibrate(8.0, study.privacy.delta, size, size, 1)
    write_json(paths.noise("digits", 8.0, 1, "full"), {"calibration": noise.to_dict()})
    with pytest.raises(CellError, match=f"calibrated for {size}"):
        run_cell(edited, paths, CELL)


def test_held_out_examples_leave_no_trace_in_the_parameters(
    study: Study, prepared: tuple[PreparedDataset, PreparedBackbone], tmp_path: Path
) -> None:
    data, backbone = prepared
    trial, parameters = train(study, data, backbone, tmp_path)
    _, held_out = data.hold_out(HELD_OUT)
    kept = np.setdiff1d(np.arange(N), held_out)
    assert trial.steps["sampled_examples"].tolist() == [N - HELD_OUT] * 3
    for rows, moves in ((held_out, False), (kept[:1], True)):
        inputs = data.train_inputs.copy()
        inputs[rows] = 255 - inputs[rows]
        changed, found = train(study, replace(data, train_inputs=inputs), backbone, tmp_path)
        same = all(np.array_equal(found[name], parameters[name]) for name in parameters)
        assert same == (not moves)
        if not moves:
            assert changed.record["macro_accuracy"] == trial.record["macro_accuracy"]
            assert changed.record["selection_accuracy"] != trial.record["selection_accuracy"]


def test_selection_looks_at_the_test_set_unless_told_otherwise(
    study: Study, prepared: tuple[PreparedDataset, PreparedBackbone], tmp_path: Path
) -> None:
    on_test = study.model_copy(
        update={"training": study.training.model_copy(update={"select_on": "test"})}
    )
    assert on_test.train_size("digits") == N
    record = train(on_test, *prepared, tmp_path)[0].record
    assert record["selection_accuracy"] == record["macro_accuracy"]
    assert record["trial_key"] != train(study, *prepared, tmp_path)[0].record["trial_key"]
