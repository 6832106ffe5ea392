"""A stopped trial goes on to the same end, in the same time; from a useless checkpoint it starts again."""

import logging
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.training.tiny_study import Prepared, assert_equal, end, stopped_after

from dpsweep.training import trial as trial_module
from dpsweep.training.context import TrialContext
from dpsweep.training.optimizer import PrivateOptimizer
from dpsweep.training.physical import DoesNotFitError
from dpsweep.training.specification import TrialSpec
from dpsweep.training.store import Arrays
from dpsweep.training.trial import epoch_ends, train_trial

Trial = tuple[TrialSpec, TrialContext]


@pytest.fixture(scope="module")
def trial(tiny: Prepared) -> Trial:
    made = tiny.of({}, {"kind": "film"}, batch_size=[30])
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
        {"kind": "sgd", "momentum": 0.9, "schedule": "cosine"}
        | {"average": {"kind": "ema", "decay": 0.9}},
        {"kind": "adam-bc", "warmup": 0.7, "average": {"kind": "tail", "share": 0.6}},
        {"kind": "torch", "name": "RMSprop", "schedule": "linear", "arguments": {"centered": True}},
        {"kind": "torch", "name": "NAdam"},
        {"kind": "adamw"},
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


def of_version_3(state: dict[str, Any]) -> None:
    """On a GPU it wrote 16 bytes of a generator that a CPU has no use for."""
    del state["optimizer"]["steps"]
    state["optimizer"]["noise"] = torch.zeros(16, dtype=torch.uint8)


@pytest.mark.parametrize(
    "spoil",
    [
        of_version_3,
        lambda state: state["parameters"].popitem(),
        lambda state: state["parameters"].update(
            dict.fromkeys(state["parameters"], torch.zeros(3))
        ),
        lambda state: state["optimizer"]["optimizer"].update(param_groups=[]),
        lambda state: state["progress"].pop("epochs"),
    ],
    ids=["older", "a parameter less", "other shapes", "another optimizer", "no progress"],
)
def test_a_checkpoint_that_does_not_fit_starts_the_trial_again(
    trial: Trial,
    whole: Arrays,
    stopped: Path,
    caplog: pytest.LogCaptureFixture,
    spoil: Callable[[Any], object],
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


# -- epochs and seconds --------------------------------------------------------------------------


@given(st.integers(1, 10**6), st.integers(1, 64))
def test_an_epoch_ends_with_the_nearest_step(steps: int, epochs: int) -> None:
    steps = max(steps, epochs)
    ends = {epoch: step for step, epoch in epoch_ends(steps, epochs).items()}
    assert sorted(ends) == list(range(1, epochs + 1))
    assert ends[epochs] == steps
    for epoch, step in ends.items():
        exact = Fraction(epoch * steps, epochs)
        assert abs(step - exact) <= Fraction(1, 2)
        assert step >= exact or step - exact != Fraction(-1, 2), "a half is rounded up"


class Clock:
    """A clock that only steps and evaluation move."""

    step, evaluation = 2.0, 30.0

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1e6
        monkeypatch.setattr(trial_module, "time", SimpleNamespace(monotonic=lambda: self.now))
        for owner, name, seconds in (
            (PrivateOptimizer, "step", self.step),
            (trial_module, "evaluate", self.evaluation),
        ):
            monkeypatch.setattr(owner, name, self._moved_by(getattr(owner, name), seconds))

    def _moved_by(self, usual: Callable[..., Any], seconds: float) -> Callable[..., Any]:
        def moving(*given: Any) -> Any:
            self.now += seconds
            return usual(*given)

        return moving


@pytest.mark.parametrize(
    ("every", "stops"), [(1.0, ()), (5.0, (5,)), (1.0, (1, 3)), (1e9, (1, 3))], ids=str
)
def test_the_time_of_a_trial_is_that_of_its_steps(
    every: float,
    stops: tuple[int, ...],
    trial: Trial,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However often it was saved, stopped and continued; a day between two jobs does not count."""
    clock, path = Clock(monkeypatch), tmp_path / "trial.checkpoint"
    for steps in stops:
        with stopped_after(steps):
            train_trial(*trial, path, every)
        clock.now += 86_400
    record = train_trial(*trial, path, every)[0].record
    assert record["wall_seconds"] == 9 * clock.step
    assert record["evaluation_seconds"] == clock.evaluation
    sampled = record["examples_per_second"] * 9 * clock.step
    assert sampled == pytest.approx(round(sampled)) and sampled > 100


def test_parameters_are_kept_at_the_end_of_their_epoch(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of an epoch are those of a trial that takes as many steps and ends there."""
    spec, context = trial
    ends = {2: 1, 5: 2, 9: 3}
    monkeypatch.setattr(trial_module, "epoch_ends", lambda *_: ends)
    _, kept = train_trial(spec, context, None, 1e9)
    seen: dict[int, dict[str, Any]] = {}
    usual = PrivateOptimizer.step

    def watched(optimizer: PrivateOptimizer, *given: Any) -> Any:
        found = usual(optimizer, *given)
        parameters = optimizer.engine.parameters.items()
        seen[len(seen) + 1] = {name: each.detach().clone() for name, each in parameters}
        return found

    monkeypatch.setattr(PrivateOptimizer, "step", watched)
    train_trial(spec, context, None, 1e9)
    for step, epoch in ends.items():
        for name, each in seen[step].items():
            assert (kept[f"epoch{epoch}/{name}"] == each.numpy()).all()
