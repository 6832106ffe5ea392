"""Stored trials and checkpoints: a stopped trial resumes bit for bit; damaged files start again."""

import logging
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.training.tiny_study import N, assert_equal, end, stopped_after
from tests.waiting import PATIENCE

from dpsweep.training.physical import DoesNotFitError
from dpsweep.training.store import StoredTrial, TrialStore, read_checked, write_checked
from dpsweep.training.trial import epoch_ends, train_trial

KEY = "ab" * 16
STORED = StoredTrial(
    {"macro_accuracy": 0.5, "spec": {"seed": 1}}, {"sampled_examples": np.arange(5)}
)


@pytest.fixture
def store(tmp_path):
    made = TrialStore(tmp_path / "trials")
    made.save(KEY, STORED)
    return made


def test_a_saved_trial_is_loaded_unchanged(store):
    found = store.load(KEY)
    assert found.record == STORED.record
    np.testing.assert_array_equal(found.steps["sampled_examples"], np.arange(5))
    assert store.load("cd" * 16) is None
    store.checkpoint_path(KEY).write_bytes(b"state")
    store.save(KEY, STORED)
    assert not store.checkpoint_path(KEY).exists()


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "record": lambda content: content.replace(b"0.5", b"0.9"),
    "array": lambda content: content[:-8] + bytes([content[-8] ^ 1]) + content[-7:],
    "cut": lambda content: content[:-4],
}


@pytest.mark.parametrize("place", DAMAGES)
def test_a_damaged_trial_is_set_aside(store, place):
    path = store.path(KEY)
    path.write_bytes(DAMAGES[place](path.read_bytes()))
    assert store.load(KEY) is None
    assert not path.exists()
    assert path.with_name(path.name + ".damaged").exists()


def test_equal_content_gives_equal_bytes(tmp_path):
    arrays = {"epoch1/b": np.ones(3), "epoch1/a": np.zeros((2, 2), dtype=np.float32)}
    record = {"trial_key": "ab", "title": 'ε = 8, "quoted"\n'}
    files = [tmp_path / f"{number}.safetensors" for number in range(5)]
    for file in files:
        write_checked(file, record, arrays)
    assert len({file.read_bytes() for file in files}) == 1
    found, read = read_checked(files[0])
    assert found == record
    assert all(np.array_equal(read[name], array) for name, array in arrays.items())


@pytest.fixture(scope="module")
def trial(tiny):
    made = tiny.of({}, {"kind": "film"}, batch_size=[30])
    return made.spec(steps=9), made.context()


@pytest.fixture(scope="module")
def whole(trial):
    """The results of the trial without a stop."""
    return end(*trial)


@pytest.fixture
def stopped(trial, tmp_path):
    """The trial's checkpoint after five steps."""
    with stopped_after(5):
        end(*trial, tmp_path / "trial.checkpoint")
    return tmp_path / "trial.checkpoint"


@pytest.mark.parametrize(
    "optimizer",
    [
        "adam",
        {"kind": "sgd", "momentum": 0.9, "schedule": "cosine"}
        | {"average": {"kind": "ema", "decay": 0.9}},
        {"kind": "adam-bc", "warmup": 0.7, "average": {"kind": "tail", "share": 0.6}},
        {"kind": "torch", "name": "RMSprop", "schedule": "linear", "arguments": {"centered": True}},
        {"kind": "torch", "name": "NAdam"},
        {"kind": "adamw"},
    ],
    ids=str,
)
def test_resuming_is_bit_identical(tiny, trial, tmp_path, optimizer, caplog):
    """Cover moments, noise, sampling, units, schedules and averages; a tail begins before the stop.

    One epoch of three ends before the stop, so the state has its parameters.
    """
    spec, context = trial
    if optimizer == {"kind": "adamw"}:  # with units
        data = replace(tiny.data, train_units=np.arange(N) // 3)
        context = tiny._replace(data=data).context()
        spec = replace(spec, train_size=context.train.protected, rows_per_unit=2)
    chosen = replace(spec, optimizer=optimizer, epochs=3)
    path = tmp_path / "trial.checkpoint"
    wanted, epochs = train_trial(chosen, context, None, 1e9)
    with stopped_after(5):
        end(chosen, context, path)
    with caplog.at_level(logging.INFO):
        resumed, found = train_trial(chosen, context, path, 1e9)
    assert "continuing from step 5" in caplog.text
    assert_equal(found | resumed.steps, epochs | wanted.steps)
    for name in ("accuracy", "macro_accuracy", "last_accuracy", "last_macro_accuracy", "loss"):
        assert resumed.record[name] == wanted.record[name]


@pytest.mark.parametrize(
    "spoil",
    [
        # On a GPU, version 3 wrote the state of a generator instead of the number of steps.
        lambda state: state["optimizer"].update(noise=state["optimizer"].pop("steps")),
        lambda state: state["parameters"].update({"head.bias": torch.zeros(3)}),
        lambda state: state["optimizer"]["optimizer"].update(param_groups=[]),
        lambda state: state["progress"].pop("epochs"),
    ],
    ids=["older", "another shape", "another optimizer", "no progress"],
)
def test_an_unusable_checkpoint_restarts_the_trial(trial, whole, stopped, caplog, spoil):
    state = torch.load(stopped, weights_only=True)
    spoil(state)
    torch.save(state, stopped)
    assert_equal(end(*trial, stopped), whole)
    assert "the trial starts again" in caplog.text
    assert not stopped.exists()


def test_a_checkpoint_is_kept_when_memory_runs_out(trial, whole, stopped, monkeypatch, caplog):
    """Another program may use the memory only temporarily."""
    full = Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory."))
    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.Adam, "load_state_dict", full)
        with pytest.raises(DoesNotFitError, match="goes on from its checkpoint"):
            end(*trial, stopped)
    with caplog.at_level(logging.INFO):
        assert_equal(end(*trial, stopped), whole)
    assert "continuing from step 5" in caplog.text


def test_a_resumed_trial_goes_on_with_its_time_and_its_physical_batch(tiny, trial, stopped):
    """The size was found when memory ran out, and would be found again at a price."""
    # A context keeps its physical batch for later trials.
    context = tiny.of({}, {"kind": "film"}, batch_size=[30]).context()
    state = torch.load(stopped, weights_only=True)
    state["progress"] |= {"seconds": 1000.0, "physical_batch": 4}
    torch.save(state, stopped)
    resumed, _ = train_trial(trial[0], context, stopped, 1e9)
    assert 1000 < resumed.record["wall_seconds"] < 1000 + PATIENCE
    assert resumed.record["physical_batch"] == 4


@given(st.integers(1, 10**6), st.integers(1, 64))
def test_an_epoch_ends_with_the_nearest_step(steps, epochs):
    steps = max(steps, epochs)
    ends = {epoch: step for step, epoch in epoch_ends(steps, epochs).items()}
    assert sorted(ends) == list(range(1, epochs + 1))
    assert ends[epochs] == steps
    for epoch, step in ends.items():
        exact = Fraction(epoch * steps, epochs)
        assert abs(step - exact) <= Fraction(1, 2)
        assert step >= exact or step - exact != Fraction(-1, 2), "a half is rounded up"
