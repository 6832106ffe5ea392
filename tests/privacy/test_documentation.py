"""The comparison in docs/privacy.md is the measured one."""

import importlib.util
from pathlib import Path

import pytest

from dpsweep.base.files import read_json

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_documented_table_shows_the_committed_results():
    specification = importlib.util.spec_from_file_location(
        "calibration_benchmark", REPOSITORY / "benchmarks" / "calibration.py"
    )
    benchmark = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(benchmark)
    results = read_json(REPOSITORY / "benchmarks" / "results" / "calibration_comparison.json")
    documented = (REPOSITORY / "docs" / "privacy.md").read_text(encoding="utf-8")
    assert benchmark.comparison_table(results) in documented
    assert len(results["settings"]) == 20
