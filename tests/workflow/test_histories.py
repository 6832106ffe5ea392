"""Short forms of two campaigns: random histories, and kills at random moments."""

from pathlib import Path

import pytest
from benchmarks.histories import live
from benchmarks.kills import attempt, is_good
from tests.workflow.tiny import TinyChain

pytestmark = [pytest.mark.slow, pytest.mark.campaign]


@pytest.mark.parametrize("seed", [1, 2])
def test_a_history_ends_as_a_fresh_run(tmp_path: Path, seed: int) -> None:
    assert live(tmp_path, seed)["wrong"] == []


def test_the_same_command_mends_a_killed_run(tmp_path: Path) -> None:
    TinyChain(tmp_path / "base").run()
    result = attempt(tmp_path / "base", tmp_path / "run", seed=4, seconds=10.0)
    assert result is not None and is_good(result), result
