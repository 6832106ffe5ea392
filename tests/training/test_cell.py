"""A cell tells what its trials cost, while it trains and at its end."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.training.tiny_study import N, prepare, tiny_study

from dpsweep.files import write_json
from dpsweep.privacy import calibrate
from dpsweep.training.cell import run_cell


def test_progress_counts_every_trial_once(tmp_path: Path) -> None:
    study = tiny_study({}, {"kind": "film"})
    paths = prepare(study, tmp_path)[0]
    (cell,) = study.sweep_cells("digits")
    noise = calibrate(8.0, study.privacy.delta, N, N, 1)
    write_json(paths.noise("digits", 8.0, 1, "full"), {"calibration": noise.to_dict()})
    told: list[dict[str, Any]] = []
    run_cell(study, paths, cell, progress=told.append)
    trials = pd.read_parquet(paths.cell(cell) / "trials.parquet")
    assert [each["trials"] for each in told[:-1]] == list(range(1, len(trials) + 1))
    assert told[-1]["trained"] == len(trials)
    assert told[-1]["trial_seconds"] >= trials["wall_seconds"].sum() - 0.01
    again: list[dict[str, Any]] = []
    run_cell(study, paths, cell, progress=again.append)
    assert [each["trained"] for each in again] == [0]
    assert again[0]["trial_seconds"] == pytest.approx(told[-1]["trial_seconds"])
