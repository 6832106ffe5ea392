"""A trial goes on from its checkpoint to the same end, and from a useless one it starts again."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.tiny_study import assert_equal, end, prepare, stopped_after, tiny_study

from dpsweep.training.context import TrialContext
from dpsweep.training.physical import DoesNotFitError
from dpsweep.training.specification import TrialSpec
from dpsweep.training.store import Arrays
from dpsweep.training.trial import train_trial

Trial = tuple[TrialSpec, TrialContext]


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    study = tiny_study({}, {"kind": "film"}, batch_size=[30])
    made = prepare(study, tmp_path_factory.mktemp("checkpoint"))
    return made.spec(steps=9), made.context()


@pytest.fixture(scope="module")
def whole(trial: Trial) -> Arrays:
    """What the trial ends with that is never stopped."""
    return end(*trial)


@pytest.fixture
def stopped(trial: Trial, tmp_path: Path) -> Path:
    """The checkpoint of the trial after five steps."""
    path = tmp_path / "trial.checkpoint"
    with stopped_after(5):
        end(*trial, path)
    return path


def test_resuming_is_bit_identical(
    trial: Trial, whole: Arrays, stopped: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Adam's moments, noise, sampling and statistics included."""
    with caplog.at_level(logging.INFO):
        assert_equal(end(*trial, stopped), whole)
    assert "continuing from step 5" in caplog.text


@pytest.mark.parametrize(
    "optimizer",
    [
        {
            "kind": "sgd",
            "momentum": 0.9,
            "schedule": "cosine",
            "average": {"kind": "ema", "decay": 0.9},
        },
        {"kind": "adam-bc", "warmup": 0.7, "average": {"kind": "tail", "share": 0.6}},
        {"kind": "torch", "name": "RMSprop", "schedule": "linear"},
    ],
)
def test_every_optimizer_resumes_bit_identically(
    trial: Trial, tmp_path: Path, optimizer: dict[str, Any]
) -> None:
    """Momentum, schedules and averages included; the tail begins before the stop."""
    spec, context = trial
    chosen, path = replace(spec, optimizer=optimizer), tmp_path / "trial.checkpoint"
    wanted, record = end(chosen, context), train_trial(chosen, context, None, 1e9)[0].record
    with stopped_after(5):
        end(chosen, context, path)
    resumed, epochs = train_trial(chosen, context, path, 1e9)
    assert_equal(epochs | resumed.steps, wanted)
    measured = ("accuracy", "macro_accuracy", "last_accuracy", "last_macro_accuracy", "loss")
    assert [resumed.record[name] for name in measured] == [record[name] for name in measured]


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
    trial: Trial, whole: Arrays, stopped: Path, caplog: pytest.LogCaptureFixture, spoil: Any
) -> None:
    state = torch.load(stopped, weights_only=True)
    spoil(state)
    torch.save(state, stopped)
    assert_equal(end(*trial, stopped), whole)
    assert "the trial starts again" in caplog.text
    assert not stopped.exists()


def test_a_secret_changes_noise_and_batches(trial: Trial) -> None:
    public, hidden = (train_trial(*trial, None, 1e9, secret=secret) for secret in (b"", b"x"))
    assert (public[0].steps["sampled_examples"] != hidden[0].steps["sampled_examples"]).any()
    assert all((public[1][name] != hidden[1][name]).any() for name in public[1])


def test_a_checkpoint_is_kept_where_its_state_does_not_fit(
    trial: Trial,
    whole: Arrays,
    stopped: Path,
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
            end(*trial, stopped)
    with caplog.at_level(logging.INFO):
        assert_equal(end(*trial, stopped), whole)
    assert "continuing from step 5" in caplog.text
