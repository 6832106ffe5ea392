"""Fixtures for tests of the trainer."""

import pytest
from tests.training.tiny_study import Prepared, prepare, tiny_study


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """The tiny study with its dataset and network; tests must not write into its folder."""
    return prepare(tiny_study({}, {"kind": "film"}), tmp_path_factory.mktemp("tiny"))
