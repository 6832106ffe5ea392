"""Which trial of a cell the theory looks at, and how many of its examples."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from tests.training.tiny_study import N, tiny_study

from dpsweep.study.paths import Paths
from dpsweep.training import theory
from dpsweep.training.theory import best_trial, measure_overlap


def write_trials(paths: Paths, **changes: Any) -> Any:
    """Three seeds at the best rate and two other rates, in no order."""
    study = tiny_study({}, {"kind": "film"})
    (cell,) = study.all_cells()
    rows = [
        {"learning_rate": rate, "seed": seed, "best": rate == 0.01, "trial_key": f"{rate}-{seed}"}
        | {"batch_size": 64, "noise_multiplier": 1.0, "trainable_parameters": 3}
        | changes
        for rate, seed in ((0.1, 1), (0.01, 3), (0.01, 1), (0.001, 1), (0.01, 2))
    ]
    folder = paths.cell(cell)
    folder.mkdir(parents=True)
    pd.DataFrame(rows).to_parquet(folder / "trials.parquet")
    return study, cell


@pytest.mark.parametrize("seeds", [(1, 2, 3), (2, 3)])
def test_it_is_the_first_seed_at_the_best_learning_rate(
    seeds: tuple[int, ...], tmp_path: Path
) -> None:
    paths = Paths(tmp_path)
    _, cell = write_trials(paths)
    file = paths.cell(cell) / "trials.parquet"
    trials = pd.read_parquet(file)
    trials[trials["seed"].isin(seeds) | ~trials["best"]].to_parquet(file)
    assert best_trial(paths, cell)["trial_key"] == f"0.01-{seeds[0]}"


@pytest.mark.parametrize(("batch", "largest", "drawn"), [(64, 100, 64), (200, 100, 100)])
def test_batches_are_of_its_size_or_the_largest_allowed(
    batch: int, largest: int, drawn: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, asked = Paths(tmp_path), []
    study, cell = write_trials(paths, batch_size=batch)
    section = study.theory.model_copy(update={"largest_batch": largest, "draws": 7})

    @contextlib.contextmanager
    def along(_study: Any, _paths: Any, of: Any, row: Any, _output: Any) -> Iterator[Any]:
        assert (of, row["trial_key"]) == (cell, "0.01-1")
        yield SimpleNamespace(context=SimpleNamespace(train=SimpleNamespace(labels=range(N))))

    class AskedError(Exception):
        pass

    def draw_batches(*given: int) -> Any:
        asked.append(given)
        raise AskedError

    monkeypatch.setattr(theory.Trajectory, "along", along)
    monkeypatch.setattr(theory, "draw_batches", draw_batches)
    with pytest.raises(AskedError):
        measure_overlap(study.model_copy(update={"theory": section}), paths, cell)
    assert asked == [(N, drawn, 7)]
