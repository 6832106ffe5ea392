"""Per-example gradient norms of a stored trial: right, and not measured twice."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from tests.synthetic import make_study, write_cells
from tests.training.tiny_study import N, tiny_sections

from dpsweep.analysis.frames import load_trials
from dpsweep.base.files import read_json, write_json
from dpsweep.cli import stages
from dpsweep.data.prepared import PreparedDataset
from dpsweep.models.backbone import PreparedBackbone
from dpsweep.privacy import CalibrationError
from dpsweep.study import load_study
from dpsweep.study.choice import choose
from dpsweep.study.paths import Paths
from dpsweep.training import gradient_norms, trajectory
from dpsweep.training.context import TrialContext, load_trainable
from dpsweep.training.job import EXIT_AGAIN, Interrupted
from dpsweep.training.store import TrialStore
from dpsweep.training.trajectory import TrajectoryError

PROBLEM = "digits_vit_method"
SECTIONS = tiny_sections({}, {"kind": "film"})
SECTIONS["sweeps"]["digits"] |= {
    "epochs": [3],
    "batch_size": [30],
    "learning_rate": [0.05],
    "physical_batch": 32,
}


@pytest.fixture(scope="module")
def study_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study whose one cell is trained."""
    folder = tmp_path_factory.mktemp("norms")
    file = folder / "study.yaml"
    file.write_text(yaml.safe_dump(SECTIONS | {"results": str(folder / "results")}))
    stages.prepare_dataset("digits", file)
    stages.prepare_backbone("vit", file)
    stages.calibrate("digits", 8.0, 3, "30", file)
    stages.train(PROBLEM, "eps8_epochs3_B30_C1", file)
    return file


def measure(file: Path) -> pd.DataFrame:
    study = load_study(file)
    paths = Paths(Path(study.results))
    gradient_norms.measure_gradient_norms(study, paths, PROBLEM, 8.0, 3, 1.0)
    output = paths.gradient_norms(PROBLEM, 8.0, 3, 1.0)
    assert [path.name for path in output.parent.iterdir()] == [output.name]
    found = pd.read_parquet(output)
    output.unlink()
    return found


def test_norms_are_of_the_batch_size_that_every_figure_chooses(tmp_path: Path) -> None:
    study, paths = make_study({"s": {"batch_size": [100, 200], "seeds": 2}}), Paths(tmp_path)
    accuracy = {100: [0.8, 0.6], 200: [0.7, 0.9]}  # the first seed alone would choose 100
    write_cells(
        study,
        paths,
        lambda cell, rate, seed: {"macro_accuracy": accuracy[int(cell.batch_size)][seed - 1]},
    )
    cell, row = gradient_norms.best_cell(study, paths, "digits_small_film", 8.0, 2, 1.0)
    drawn = choose(load_trials(paths, study.sweep_cells("s")), by=["clipping_bound"]).iloc[0]
    assert cell.batch_size == drawn["batch_size"] == 200
    assert row["trial_key"] == drawn["trial_key"]
    assert row["seed"] == 1


def test_norms_are_those_of_the_loop_at_the_end_of_every_epoch(study_file: Path) -> None:
    found = measure(study_file)
    study = load_study(study_file)
    paths = Paths(Path(study.results))
    data = PreparedDataset.open(paths.dataset("digits"))
    context = TrialContext(
        data, PreparedBackbone.open(paths.backbone("vit")), study.methods["method"]
    )
    model = context.model(1)
    loop = context.engine("loop", model)
    stored = TrialStore(paths.trials).load_parameters(found["trial_key"].iloc[0])
    assert stored is not None
    inputs, _ = context.batch(context.train, torch.arange(N))
    labels = torch.from_numpy(np.array(data.train_labels))
    for epoch, rows in found.groupby("epoch"):
        prefix = f"epoch{epoch}/"
        load_trainable(
            model,
            {
                name.removeprefix(prefix): torch.from_numpy(value)
                for name, value in stored.items()
                if name.startswith(prefix)
            },
        )
        wanted = loop.norms(inputs, labels, torch.ones(N, dtype=torch.bool))
        for column, norms in zip(("norm", "head_norm"), wanted, strict=True):
            np.testing.assert_allclose(rows[column], norms.numpy(), rtol=1e-4)
        assert rows["label"].tolist() == data.train_labels.tolist()
    assert found["norm"].groupby(found["epoch"]).mean().nunique() == 3


@pytest.mark.parametrize("how", ["killed", "told"])
def test_finished_epochs_are_kept(
    study_file: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    whole = measure(study_file)
    original = gradient_norms.training_set_norms
    calls = []

    def one_pass(*arguments: Any) -> Any:
        calls.append(1)
        if how == "killed" and len(calls) == 3:
            raise KeyboardInterrupt
        return original(*arguments)

    def told(*, saved: bool) -> Interrupted | None:
        return (
            Interrupted(EXIT_AGAIN if saved else 1) if how == "told" and len(calls) == 2 else None
        )

    monkeypatch.setattr(gradient_norms, "training_set_norms", one_pass)
    monkeypatch.setattr(trajectory, "interruption", told)
    with pytest.raises((KeyboardInterrupt, Interrupted)) as stop:
        measure(study_file)
    if isinstance(stop.value, Interrupted):
        assert stop.value.code == EXIT_AGAIN
    # Two epochs are done; the one that is left is all that is measured.
    how = "goes on"
    calls.clear()
    pd.testing.assert_frame_equal(measure(study_file), whole)
    assert len(calls) == 1


def test_an_edited_calibration_is_refused(study_file: Path) -> None:
    paths = Paths(Path(load_study(study_file).results))
    noise = paths.noise("digits", 8.0, 3, 30)
    honest = noise.read_text()
    content = read_json(noise)
    write_json(noise, content | {"noise_multiplier": content["noise_multiplier"] / 2})
    with pytest.raises(CalibrationError, match="noise_multiplier: found"):
        measure(study_file)
    noise.write_text(honest)
    measure(study_file)


def test_parameters_of_another_study_are_refused(study_file: Path) -> None:
    edited = yaml.safe_load(study_file.read_text())
    edited["sweeps"]["digits"]["physical_batch"] = 16
    file = study_file.with_name("edited.yaml")
    file.write_text(yaml.safe_dump(edited))
    with pytest.raises(TrajectoryError, match="another study") as raised:
        measure(file)
    (trials,) = raised.value.remake
    assert str(raised.value).startswith(f"{trials}: found trial")


def test_a_trial_is_trained_again_once(study_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = measure(study_file)
    store = TrialStore(Paths(Path(load_study(study_file).results)).trials)
    key = whole["trial_key"].iloc[0]
    parameters = store.load_parameters(key)
    assert parameters is not None
    store.drop_parameters(key)

    def told(*, saved: bool) -> Interrupted:
        return Interrupted(EXIT_AGAIN if saved else 1)

    with monkeypatch.context() as patch:
        patch.setattr(trajectory, "interruption", told)
        with pytest.raises(Interrupted) as stop:
            measure(study_file)
    assert stop.value.code == EXIT_AGAIN
    monkeypatch.delattr(trajectory, "train_trial")
    pd.testing.assert_frame_equal(measure(study_file), whole)
    store.save_parameters(key, parameters)
