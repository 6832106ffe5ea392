"""The paper's study and the demo, read once."""

from pathlib import Path

import pytest

from dpsweep.study import Study, load_study


@pytest.fixture(scope="session")
def paper() -> Study:
    """The study in ``config.yaml``."""
    return load_study(Path(__file__).parents[2] / "config.yaml")


@pytest.fixture(scope="session")
def demo() -> Study:
    """The study in ``studies/demo.yaml``."""
    return load_study(Path(__file__).parents[2] / "studies" / "demo.yaml")
