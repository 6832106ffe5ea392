"""Short forms of two campaigns: random histories, and kills at random moments."""

from pathlib import Path

import pytest
from benchmarks.campaigns import kills
from benchmarks.campaigns.histories import run_history

pytestmark = pytest.mark.nightly


def test_a_history_has_the_results_of_a_fresh_run(tmp_path: Path) -> None:
    assert run_history(tmp_path, seed=1)["wrong"] == []


def test_the_same_command_completes_killed_runs(tmp_path: Path) -> None:
    result = kills.history(tmp_path, seed=1)
    assert result["kills"]
    assert kills.is_good(result), result
