"""The tables of docs/performance.md are those of the results beside the benchmarks."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_tables_are_current() -> None:
    module = runpy.run_path(str(ROOT / "benchmarks" / "tables.py"))
    document = (ROOT / "docs" / "performance.md").read_text()
    assert module["filled"](document) == document, "run python benchmarks/tables.py"
