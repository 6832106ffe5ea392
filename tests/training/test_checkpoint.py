"""A trial goes on from its checkpoint to the same end, and from a useless one it starts again."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.training.tiny_study import prepare, specs_of, tiny_sections

from dpsweep.privacy.calibration import calibrate
from dpsweep.study import Study
from dpsweep.training import trial as trial_module
from dpsweep.training.context import TrialContext
from dpsweep.training.job import Interrupted
from dpsweep.training.physical import DoesNotFitError
from dpsweep.training.specification import TrialSpec
from dpsweep.training.trial import train_trial


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrialContext, TrialSpec]:
    torch.set_num_threads(1)
    sections = tiny_sections({}, {"kind": "film"})
    sections["sweeps"]["digits"]["batch_size"] = [30]
    study = Study.model_validate(sections)
    (cell,) = study.all_cells()
    _, data, backbone = prepare(study, tmp_path_factory.mktemp("checkpoint"))
    noise = calibrate(8.0, 1e-5, study.train_size("digits"), 30, 9)
    cpu = torch.device("cpu")
    (spec,) = specs_of(study, cell, noise, data, backbone).values()
    return TrialContext(data, backbone, study.methods["method"], device=cpu), spec


@pytest.fixture
def stopped(
    trial: tuple[TrialContext, TrialSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The checkpoint of the trial after five steps."""
    context, spec = trial
    path, calls = tmp_path / "trial.checkpoint", iter(range(100))
    with monkeypatch.context() as patch:
        patch.setattr(
            trial_module,
            "interruption",
            lambda saved: Interrupted(75) if next(calls) == 4 else None,
        )
        with pytest.raises(Interrupted):
            train_trial(spec, context, path, 1e9)
    return path


def end(trial: tuple[TrialContext, TrialSpec], checkpoint: Path) -> dict[str, np.ndarray]:
    context, spec = trial
    stored, epochs = train_trial(spec, context, checkpoint, 1e9)
    return {name: np.asarray(value) for name, value in (epochs | stored.steps).items()}


def test_resuming_is_bit_identical(
    trial: tuple[TrialContext, TrialSpec],
    stopped: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Adam's moments, noise, sampling and statistics included."""
    with caplog.at_level(logging.INFO):
        resumed = end(trial, stopped)
    assert "continuing from step 5" in caplog.text
    whole = end(trial, tmp_path / "none")
    assert whole.keys() == resumed.keys()
    for name, value in whole.items():
        np.testing.assert_array_equal(resumed[name], value, err_msg=name)


def test_a_checkpoint_holds_no_generator(stopped: Path) -> None:
    """Noise follows from the trial's name and the step: nothing of it is on the disk."""
    state = torch.load(stopped, weights_only=True)
    assert state.keys() == {"parameters", "optimizer", "progress"}
    assert state["optimizer"].keys() == {"optimizer", "steps"}
    assert state["optimizer"]["steps"] == state["progress"]["step"] == 5


def without_steps(state: dict[str, Any]) -> None:
    # As version 3 wrote it, on a GPU: 16 bytes of a generator that a CPU has no use for.
    del state["optimizer"]["steps"]
    state["optimizer"]["noise"] = torch.zeros(16, dtype=torch.uint8)


def without_a_parameter(state: dict[str, Any]) -> None:
    state["parameters"].popitem()


def of_another_shape(state: dict[str, Any]) -> None:
    name = next(iter(state["parameters"]))
    state["parameters"][name] = torch.zeros(3)


def of_another_optimizer(state: dict[str, Any]) -> None:
    state["optimizer"]["optimizer"]["param_groups"] = []


def without_progress(state: dict[str, Any]) -> None:
    del state["progress"]["epochs"]


@pytest.mark.parametrize(
    "spoil",
    [without_steps, without_a_parameter, of_another_shape, of_another_optimizer, without_progress],
)
def test_a_checkpoint_that_does_not_fit_starts_the_trial_again(
    trial: tuple[TrialContext, TrialSpec],
    stopped: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    spoil: Any,
) -> None:
    state = torch.load(stopped, weights_only=True)
    spoil(state)
    torch.save(state, stopped)
    found = end(trial, stopped)
    assert "the trial starts again" in caplog.text
    assert not stopped.exists()
    for name, value in end(trial, tmp_path / "none").items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_a_secret_changes_noise_and_batches(
    trial: tuple[TrialContext, TrialSpec], tmp_path: Path
) -> None:
    context, spec = trial
    public, hidden = (
        train_trial(spec, context, tmp_path / "none", 1e9, secret=secret) for secret in (b"", b"x")
    )
    assert (public[0].steps["sampled_examples"] != hidden[0].steps["sampled_examples"]).any()
    assert all((public[1][name] != hidden[1][name]).any() for name in public[1])


def test_a_checkpoint_is_kept_where_its_state_does_not_fit(
    trial: tuple[TrialContext, TrialSpec],
    stopped: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Another program may hold the memory at the moment."""

    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.Adam, "load_state_dict", full)
        with pytest.raises(
            DoesNotFitError, match=r"state does not fit .*goes on from its checkpoint"
        ):
            end(trial, stopped)
    with caplog.at_level(logging.INFO):
        found = end(trial, stopped)
    assert "continuing from step 5" in caplog.text
    for name, value in end(trial, tmp_path / "none.checkpoint").items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
