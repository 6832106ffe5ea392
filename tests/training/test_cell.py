"""Cells: noise of the study, held-out examples, the repeated best learning rate, rows and progress."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from tests.training.tiny_study import N, Prepared, calibrate, tiny_sections

from dpsweep.analysis import frames
from dpsweep.privacy import CalibrationError
from dpsweep.privacy.noise import write_calibration
from dpsweep.study import Cell, Study
from dpsweep.study.datasets import held_out_rows
from dpsweep.study.paths import Paths
from dpsweep.training import cell as module
from dpsweep.training.cell import COLUMNS, TRIALS, cell_noise, run_cell, trial_table
from dpsweep.training.store import StoredTrial
from dpsweep.training.trial import train_trial

BATCH_SIZE, RATES = 200, [0.001, 0.003, 0.01, 0.03]
CELL = Cell("digits_vit_method", 8.0, 1, BATCH_SIZE, 1.0)


def study(selection: str = "repeat-best", seeds: int = 1, **privacy: Any) -> Study:
    rates = RATES if seeds > 1 else [0.003]
    sections = tiny_sections(
        {"selection": selection},
        {"kind": "film"},
        batch_size=[BATCH_SIZE],
        learning_rate=rates,
        seeds=seeds,
    )
    return Study.model_validate(sections | {"privacy": privacy})


@pytest.fixture
def paths(tiny, tmp_path):
    """The files of a study that is ready to train."""
    return tiny._replace(study=study()).ready(tmp_path).paths


def noise(paths: Paths, chosen: Study | None = None) -> Path:
    return paths.noise(chosen or study(), "digits", 8.0, 1, BATCH_SIZE)


def run(chosen: Study, paths: Paths) -> tuple[pd.DataFrame, list[dict[str, Any]]]:
    """Run the cell; return its rows and its progress reports."""
    told: list[dict[str, Any]] = []
    run_cell(chosen, paths, CELL, progress=told.append)
    return pd.read_parquet(paths.cell_trials(chosen, CELL)), told


def test_progress_counts_every_trial_once(paths):
    trials, told = run(study(), paths)
    assert [each["trials"] for each in told[:-1]] == list(range(1, len(trials) + 1))
    assert told[-1]["trained"] == len(trials)
    rows = trials[["learning_rate", "seed", "trial_key"]].to_numpy().tolist()
    assert sorted(told[-1]["keys"]) == sorted(rows)
    assert all(paths.trial(key).exists() for *_, key in rows)
    assert told[-1]["trial_seconds"] >= trials["wall_seconds"].sum() - 0.01
    _, again = run(study(), paths)
    assert [each["trained"] for each in again] == [0]
    assert again[0]["trial_seconds"] == pytest.approx(told[-1]["trial_seconds"])


@pytest.mark.parametrize(
    ("privacy", "said"),
    [
        ({"delta": 1e-6}, "delta: found 1e-05, expected 1e-06"),
        ({"step_rounding": "ceil"}, "steps: found 1, expected 2"),
    ],
)
def test_noise_for_another_setting_is_refused_before_training(paths, privacy, said):
    edited = study(**privacy)
    file = noise(paths, edited)
    shutil.copy(noise(paths), file)  # under a wrong name
    with pytest.raises(CalibrationError, match=said) as raised:
        run(edited, paths)
    assert raised.value.remake == (file,)
    assert not paths.trials.exists()


HILL = dict(zip(RATES, (0.2, 0.5, 0.6, 0.1), strict=True))


@pytest.mark.parametrize(
    ("selection", "scores", "trials", "best"),
    [
        ("repeat-best", HILL, 4 + 2, 0.01),
        ("exhaustive", HILL, 12, 0.01),
        ("bracket", HILL, 3 + 2, 0.01),
        # The smallest rate wins a tie.
        ("repeat-best", dict.fromkeys(RATES, 0.5), 4 + 2, 0.001),
    ],
)
def test_the_best_rate_of_the_first_seed_is_repeated(
    selection, scores, trials, best, paths, monkeypatch
):
    template: list[StoredTrial] = []

    def train(spec, context, *others):
        if not template:
            template.append(train_trial(spec, context, *others)[0])
        chosen = scores[spec.learning_rate] - 0.01 * spec.seed
        # Selection must use selection_accuracy and not macro_accuracy.
        record = template[0].record | {"selection_accuracy": chosen, "macro_accuracy": 1 - chosen}
        return StoredTrial(record, template[0].steps), {"epoch1/weight": np.zeros(1)}

    monkeypatch.setattr(module, "train_trial", train)
    rows, _ = run(study(selection, seeds=3), paths)
    assert set(rows[rows["best"]]["learning_rate"]) == {best}
    assert sorted(rows[rows["best"]]["seed"]) == [1, 2, 3]
    assert len(rows) == trials


SHARE = 0.2
HELD_OUT = len(held_out_rows(N, SHARE))
FULL_CELL = Cell("digits_vit_method", 8.0, 1, "full", 1.0)


@pytest.fixture
def made(tiny, tmp_path):
    training = {"select_on": "holdout", "holdout_share": SHARE}
    return tiny.of(training, {"kind": "all"}).copied(tmp_path)


def train(made: Prepared) -> tuple[StoredTrial, Any]:
    return train_trial(made.spec(steps=3), made.context(), None, 1e9)


def test_noise_is_calibrated_for_the_training_examples(made):
    study, paths = made.study, made.paths
    kept, held_out = made.data.hold_out(SHARE)
    assert sorted([*kept, *held_out]) == list(range(N)) and len(held_out) == HELD_OUT
    assert study.train_size("digits") == study.batch_size(FULL_CELL) == N - HELD_OUT
    path = paths.noise(study, "digits", 8.0, 1, "full")
    write_calibration(path, calibrate(8.0, 1e-5, N, N, 1))
    with pytest.raises(CalibrationError, match=f"train_size: found {N}, expected"):
        cell_noise(study, paths, FULL_CELL)
    noise = calibrate(8.0, 1e-5, N - HELD_OUT, N - HELD_OUT, 1)
    write_calibration(path, noise)
    assert cell_noise(study, paths, FULL_CELL) == noise


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


FILES = Path(__file__).parents[2] / "docs" / "files.md"
VALUES = {pa.string(): "a", pa.int64(): 1, pa.float64(): 0.5, pa.bool_(): True}
ROW: dict[str, Any] = {each.name: VALUES.get(each.type, [0.5]) for each in TRIALS}


def test_documentation_and_readers_have_the_columns_of_the_schema():
    assert COLUMNS in FILES.read_text(encoding="utf-8"), "src/dpsweep/training/trial_columns.md"
    assert {*frames.TRIAL_COLUMNS, *frames.REPORT_COLUMNS} <= {*TRIALS.names, "problem"}


def test_rows_are_kept_and_wrong_rows_are_refused():
    assert trial_table([ROW, ROW]).to_pylist() == [ROW, ROW]
    of_rows = {key: value for key, value in ROW.items() if key != "unit_accuracy"}
    assert trial_table([of_rows]).to_pylist() == [of_rows]
    assert trial_table([ROW, of_rows]).to_pylist() == [ROW, of_rows | {"unit_accuracy": None}]
    for name in ("noise_multiplier", "trial_key"):
        with pytest.raises(ValueError, match=name):
            trial_table([{key: value for key, value in ROW.items() if key != name}])
    with pytest.raises(ValueError, match="nonsense"):
        trial_table([ROW | {"nonsense": 1}])
    with pytest.raises(pa.ArrowInvalid):
        trial_table([ROW | {"seed": "first"}])
