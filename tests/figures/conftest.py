"""Results of a small study that has a figure of every family."""

from pathlib import Path

import pytest
from tests.figures.test_draw import write_results


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the results; a test that changes them copies it."""
    return write_results(tmp_path_factory.mktemp("results")).results
