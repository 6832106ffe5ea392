"""Every study of the repository fits the schema."""

from pathlib import Path

import pytest

from dpsweep.study import load_study

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "studies").glob("*.yaml"))


@pytest.mark.parametrize("file", [ROOT / "config.yaml", *FILES], ids=lambda file: file.stem)
def test_a_shipped_study_is_valid(file: Path) -> None:
    assert load_study(file).all_cells()
