"""Fixtures for tests of the trainer."""

from functools import cache

import pytest
from tests.training.tiny_study import prepare, tiny_study

from dpsweep.training import private_training

verify = cache(private_training.verify)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """The tiny study with its dataset and network; tests must not write into its folder."""
    return prepare(tiny_study({}, {"kind": "film"}), tmp_path_factory.mktemp("tiny"))


@pytest.fixture(autouse=True)
def verified_once(monkeypatch):
    """Prove the epsilon of equal calibrations once."""
    monkeypatch.setattr(private_training, "verify", verify)
