"""What the theory needs of a stored trial: right, not measured twice, and marked as not private."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from tests.training.tiny_study import N, tiny_sections

from dpsweep.cli import stages
from dpsweep.study import Cell, load_study
from dpsweep.study.paths import Paths
from dpsweep.theory import ClippedSums
from dpsweep.training import theory
from dpsweep.training.checkpoint import parameters_after
from dpsweep.training.context import load_trainable
from dpsweep.training.gradients.interface import GradientEngine
from dpsweep.training.gradients.loop import LoopEngine
from dpsweep.training.store import TrialStore
from dpsweep.training.trajectory import Trajectory

PROBLEM = "digits_vit_method"
CELL = "eps8_epochs2_B30_C1"
SECTIONS = tiny_sections({}, {"kind": "film"}) | {"theory": {"draws": 2, "largest_batch": 20}}
SECTIONS["sweeps"]["digits"] |= {"epochs": [2], "batch_size": [30], "learning_rate": [0.05]}


@pytest.fixture(scope="module")
def study_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study whose one cell is trained."""
    folder = tmp_path_factory.mktemp("theory")
    file = folder / "study.yaml"
    file.write_text(yaml.safe_dump(SECTIONS | {"results": str(folder / "results")}))
    stages.prepare_dataset("digits", file)
    stages.prepare_backbone("vit", file)
    stages.calibrate("digits", 8.0, 2, "30", file)
    stages.train(PROBLEM, CELL, file)
    return file


def measure(file: Path) -> pd.DataFrame:
    study = load_study(file)
    paths, cell = Paths(Path(study.results)), Cell.parse(PROBLEM, CELL)
    theory.measure_overlap(study, paths, cell)
    output = paths.theory(cell)
    assert [path.name for path in output.parent.iterdir()] == [output.name]
    found = pd.read_parquet(output)
    assert pq.read_schema(output).metadata[b"privacy"].startswith(b"not private")
    output.unlink()
    return found


def test_overlap_is_that_of_the_loops_gradients_at_the_start_and_after_every_epoch(
    study_file: Path, tmp_path: Path
) -> None:
    found = measure(study_file)
    study, cell = load_study(study_file), Cell.parse(PROBLEM, CELL)
    paths = Paths(Path(study.results))
    row = theory.best_trial(paths, cell)
    trajectory = Trajectory.open(study, paths, cell, row, tmp_path)
    context = trajectory.context
    batches = theory.draw_batches(N, 20, 2)
    assert sorted(found["epoch"].unique()) == [0, 1, 2]
    stored = TrialStore(paths.trials).load_parameters(row["trial_key"])
    assert stored is not None
    for (epoch, draw), rows in found.groupby(["epoch", "draw"]):
        if epoch == 0:
            context.model(int(row["seed"]))
        else:
            load_trainable(
                trajectory.model,
                {k: torch.from_numpy(v) for k, v in parameters_after(int(epoch), stored).items()},
            )
        loop = LoopEngine(trajectory.model, frozenset())
        examples = torch.from_numpy(batches[int(draw)])
        gradients, _ = loop.gradients(*context.batch(context.train, examples))
        wanted = ClippedSums.of((gradients.double() @ gradients.double().T).numpy())
        np.testing.assert_allclose(rows["norm"], wanted.norms, rtol=1e-4)
        scale = float(wanted.norms.sum())
        for column, values, size in (
            ("dot_smaller", wanted.smaller, scale**2),
            ("dot_larger", wanted.larger, scale**2),
            ("dot_larger_units", wanted.larger_units, scale * len(rows)),
        ):
            np.testing.assert_allclose(rows[column], values, atol=1e-5 * size)
    # Heads start at zero, and the gradient of everything before them too.
    assert found["trainable_parameters"].unique().tolist() == [gradients.shape[1]]
    assert found["noise_multiplier"].unique().tolist() == [row["noise_multiplier"]]
    assert found["examples"].unique().tolist() == [20]


def test_finished_epochs_are_kept(study_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = measure(study_file)
    original = theory._overlap
    calls = []

    def one_batch(*arguments: Any) -> pd.DataFrame:
        calls.append(1)
        if len(calls) == 4:  # in the second epoch
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(theory, "_overlap", one_batch)
    with pytest.raises(KeyboardInterrupt):
        measure(study_file)
    pd.testing.assert_frame_equal(measure(study_file), whole)
    assert len(calls) == 8  # four of them again: two epochs with two draws


def test_gradients_that_do_not_fit_in_memory_are_computed_twice(
    study_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = measure(study_file)
    monkeypatch.setattr(theory, "_KEPT_BYTES", 0)
    monkeypatch.setattr(theory, "_AT_ONCE", 7 * int(whole["trainable_parameters"].iloc[0]))
    again = measure(study_file)
    scale = float(whole["norm"].max()) ** 2 * 20
    np.testing.assert_allclose(again["norm"], whole["norm"], rtol=1e-4)
    np.testing.assert_allclose(again["dot_larger"], whole["dot_larger"], atol=1e-5 * scale)


def test_gradients_that_are_not_finite_are_left_out_and_counted(
    study_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(
        engine: GradientEngine, inputs: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.ones(len(labels), sum(each.numel() for each in engine.parameters.values()))
        rows[0] = 0
        return rows, torch.arange(len(labels)) == 0

    monkeypatch.setattr("dpsweep.training.gradients.checked.CheckedEngine.gradients", broken)
    monkeypatch.setattr(theory, "_BLOCK", 20)  # so that it is asked for all of them at once
    found = measure(study_file)
    assert found.groupby(["epoch", "draw"]).size().unique().tolist() == [19]
    assert found["nonfinite_examples"].unique().tolist() == [1]


def test_all_examples_are_drawn_once() -> None:
    assert {draw: len(batch) for draw, batch in theory.draw_batches(5, 5, 3).items()} == {1: 5}
    several = theory.draw_batches(50, 5, 3)
    assert [len(set(batch)) for batch in several.values()] == [5, 5, 5]
    assert len({tuple(batch) for batch in several.values()}) == 3
