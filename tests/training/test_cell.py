"""Cells: the noise of the study, the repeated best learning rate, and the reported progress."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.training.tiny_study import N, Prepared, calibrate, tiny_sections

from dpsweep.privacy import CalibrationError
from dpsweep.privacy.record import write_calibration
from dpsweep.study import Cell, Study
from dpsweep.study.paths import Paths
from dpsweep.training import cell as module
from dpsweep.training.cell import run_cell
from dpsweep.training.store import StoredTrial
from dpsweep.training.trial import TrialSpec, train_trial

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
def paths(tiny: Prepared, tmp_path: Path) -> Paths:
    """The files of a study that is ready to train."""
    paths = tiny.copied(tmp_path).paths
    write_calibration(noise(paths), calibrate(8.0, 1e-5, N, BATCH_SIZE, 1))
    return paths


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

    def train(spec: TrialSpec, context: Any, *others: Any) -> tuple[StoredTrial, Any]:
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
