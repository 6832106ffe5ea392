"""The trial store: saved trials are loaded unchanged, damaged ones are set aside."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dpsweep.training.store import StoredTrial, TrialStore, read_checked, write_checked

KEY = "ab" * 16
TRIAL = StoredTrial(
    {"macro_accuracy": 0.5, "spec": {"seed": 1}}, {"sampled_examples": np.arange(5)}
)


@pytest.fixture
def store(tmp_path: Path) -> TrialStore:
    made = TrialStore(tmp_path / "trials")
    made.save(KEY, TRIAL)
    return made


def test_a_saved_trial_is_loaded_unchanged(store):
    found = store.load(KEY)
    assert found is not None
    assert found.record == TRIAL.record
    np.testing.assert_array_equal(found.steps["sampled_examples"], np.arange(5))
    assert store.load("cd" * 16) is None
    store.checkpoint_path(KEY).write_bytes(b"state")
    store.save(KEY, TRIAL)
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
    files = [tmp_path / f"{number}.safetensors" for number in range(20)]
    for file in files:
        write_checked(file, record, arrays)
    assert len({file.read_bytes() for file in files}) == 1
    found, read = read_checked(files[0])
    assert found == record
    assert all(np.array_equal(read[name], array) for name, array in arrays.items())
