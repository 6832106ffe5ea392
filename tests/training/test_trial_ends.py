"""Where epochs end, and how long a trial took that was stopped and went on."""

from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.training.tiny_study import prepare, stopped_after, tiny_study

from dpsweep.training import trial as trial_module
from dpsweep.training.context import TrialContext
from dpsweep.training.optimizer import PrivateOptimizer
from dpsweep.training.specification import TrialSpec
from dpsweep.training.trial import epoch_ends, train_trial

Trial = tuple[TrialSpec, TrialContext]


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
        self._moved_by(monkeypatch, PrivateOptimizer, "step", self.step)
        self._moved_by(monkeypatch, trial_module, "evaluate", self.evaluation)

    def _moved_by(
        self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, seconds: float
    ) -> None:
        usual = getattr(owner, name)

        def moving(*given: Any, **named: Any) -> Any:
            self.now += seconds
            return usual(*given, **named)

        monkeypatch.setattr(owner, name, moving)


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    study = tiny_study({}, {"kind": "film"}, batch_size=[30])
    made = prepare(study, tmp_path_factory.mktemp("ends"))
    return made.spec(steps=9), made.context()


@pytest.mark.parametrize("every", [1.0, 5.0, 1e9])
@pytest.mark.parametrize("stops", [(), (5,), (1, 3)], ids=str)
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
