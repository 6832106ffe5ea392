"""The paper's study, read once."""

from pathlib import Path

import pytest

from dpsweep.study import Study, load_study


@pytest.fixture(scope="session")
def paper() -> Study:
    """The study in ``config.yaml``."""
    return load_study(Path(__file__).parents[2] / "config.yaml")
