"""The figure of docs/recommend.md shows the committed regrets."""

import runpy
from pathlib import Path
from typing import Any

import pandas as pd

ROOT = Path(__file__).parents[2]
MODULE: dict[str, Any] = runpy.run_path(str(ROOT / "benchmarks" / "recommend.py"))


def test_the_numbers_beside_the_figure_are_those_of_the_result() -> None:
    written = pd.read_csv(MODULE["IMAGE"].with_suffix(".csv"))
    pd.testing.assert_frame_equal(written, MODULE["regret_numbers"](), check_dtype=False)
