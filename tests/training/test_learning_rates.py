"""Which learning rate of a cell is repeated, and how many trials that takes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.training.tiny_study import N, prepare, tiny_study

from dpsweep.privacy.calibration import calibrate
from dpsweep.privacy.stored import write_calibration
from dpsweep.study import Study
from dpsweep.study.paths import Paths
from dpsweep.training import cell as module
from dpsweep.training.specification import TrialSpec
from dpsweep.training.store import StoredTrial
from dpsweep.training.trial import train_trial

RATES = [0.001, 0.003, 0.01, 0.03]
Score = Callable[[float, int], float]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rates")
    prepare(study("repeat-best"), folder)
    noise = calibrate(8.0, 1e-5, N, N, 1)
    write_calibration(Paths(folder).noise(study("repeat-best"), "digits", 8.0, 1, "full"), noise)
    return folder


def study(selection: str) -> Study:
    return tiny_study({"selection": selection}, {"kind": "film"}, learning_rate=RATES, seeds=3)


def run(
    selection: str, score: Score, prepared: Path, tmp_path: Path, patch: pytest.MonkeyPatch
) -> pd.DataFrame:
    """Run a cell whose trials score as told; return its rows."""
    for part in ("data", "backbones", "noise"):
        (tmp_path / part).symlink_to(prepared / part)
    template: list[StoredTrial] = []

    def train(spec: TrialSpec, context: Any, *others: Any) -> tuple[StoredTrial, Any]:
        if not template:
            template.append(train_trial(spec, context, *others)[0])
        chosen = score(spec.learning_rate, spec.seed)
        # What is chosen by is not what is reported.
        record = template[0].record | {"selection_accuracy": chosen, "macro_accuracy": 1 - chosen}
        return StoredTrial(record, template[0].steps), {"epoch1/weight": np.zeros(1)}

    patch.setattr(module, "train_trial", train)
    chosen = study(selection)
    (cell,) = chosen.sweep_cells("digits")
    paths = Paths(tmp_path)
    module.run_cell(module.OpenCell.open(chosen, paths, cell), paths, chosen)
    return pd.read_parquet(paths.cell_trials(chosen, cell))


def hill(rate: float, seed: int) -> float:
    return {0.001: 0.2, 0.003: 0.5, 0.01: 0.6, 0.03: 0.1}[rate] - 0.01 * seed


def best(rows: pd.DataFrame) -> set[float]:
    return set(rows[rows["best"]]["learning_rate"])


@pytest.mark.parametrize(
    ("selection", "trials"), [("repeat-best", 4 + 2), ("exhaustive", 12), ("bracket", 3 + 2)]
)
def test_the_best_rate_of_the_first_seed_is_repeated(
    selection: str,
    trials: int,
    prepared: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = run(selection, hill, prepared, tmp_path, monkeypatch)
    assert best(rows) == {0.01}
    assert sorted(rows[rows["best"]]["seed"]) == [1, 2, 3]
    assert len(rows) == trials


def test_the_smallest_rate_wins_a_tie(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = run("repeat-best", lambda *_: 0.5, prepared, tmp_path, monkeypatch)
    assert best(rows) == {0.001}
