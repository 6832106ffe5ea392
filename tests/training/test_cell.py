"""A cell trains with the noise that its study says, and tells what its trials cost."""

import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.training.tiny_study import N, prepare, tiny_sections

from dpsweep.base.files import read_json, write_json
from dpsweep.privacy import CalibrationError
from dpsweep.privacy.calibration import calibrate
from dpsweep.privacy.stored import write_calibration
from dpsweep.study import Cell, Study
from dpsweep.study.paths import Paths
from dpsweep.training.cell import OpenCell, run_cell

BATCH_SIZE = 200


def study(**privacy: Any) -> Study:
    sections = tiny_sections({}, {"kind": "film"}, batch_size=[BATCH_SIZE])
    return Study.model_validate(sections | {"privacy": privacy})


@pytest.fixture
def cell() -> Cell:
    (cell,) = study().sweep_cells("digits")
    return cell


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    """A study that is ready to train."""
    paths = prepare(study(), tmp_path).paths
    noise = calibrate(8.0, study().privacy.delta, N, BATCH_SIZE, 1)
    write_calibration(paths.noise(study(), "digits", 8.0, 1, BATCH_SIZE), noise)
    return paths


def test_progress_counts_every_trial_once(paths: Paths, cell: Cell) -> None:
    told: list[dict[str, Any]] = []
    run_cell(OpenCell.open(study(), paths, cell), paths, study(), progress=told.append)
    trials = pd.read_parquet(paths.cell_trials(study(), cell))
    assert [each["trials"] for each in told[:-1]] == list(range(1, len(trials) + 1))
    assert told[-1]["trained"] == len(trials)
    assert told[-1]["trial_seconds"] >= trials["wall_seconds"].sum() - 0.01
    again: list[dict[str, Any]] = []
    run_cell(OpenCell.open(study(), paths, cell), paths, study(), progress=again.append)
    assert [each["trained"] for each in again] == [0]
    assert again[0]["trial_seconds"] == pytest.approx(told[-1]["trial_seconds"])


@pytest.mark.parametrize(
    ("privacy", "message"),
    [
        ({"delta": 1e-6}, "delta: found 1e-05, expected 1e-06"),
        ({"step_rounding": "ceil"}, "steps: found 1, expected 2"),
    ],
)
def test_noise_for_another_guarantee_trains_nothing(
    paths: Paths, cell: Cell, privacy: dict[str, Any], message: str
) -> None:
    edited = study(**privacy)
    file = paths.noise(edited, "digits", 8.0, 1, BATCH_SIZE)
    shutil.copy(paths.noise(study(), "digits", 8.0, 1, BATCH_SIZE), file)  # under a wrong name
    with pytest.raises(CalibrationError, match=message) as raised:
        run_cell(OpenCell.open(edited, paths, cell), paths, edited)
    assert raised.value.remake == (file,)
    assert not paths.trials.exists()


def test_less_noise_than_certified_trains_nothing(paths: Paths, cell: Cell) -> None:
    file = paths.noise(study(), "digits", 8.0, 1, BATCH_SIZE)
    content = read_json(file)
    write_json(file, content | {"noise_multiplier": content["noise_multiplier"] / 2})
    with pytest.raises(CalibrationError, match=r"noise_multiplier: found 0\.\d+, which gives"):
        run_cell(OpenCell.open(study(), paths, cell), paths, study())
    assert not paths.trials.exists()
