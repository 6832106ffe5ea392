"""Short form of the campaign of disturbed runs on Slurm."""

import os
from pathlib import Path

import pytest
from benchmarks.campaigns import kills, kills_slurm

pytestmark = [pytest.mark.slow, pytest.mark.campaign]
if "DPSWEEP_TEST_SLURM" not in os.environ:
    pytest.skip("takes a cluster: make test-slurm", allow_module_level=True)


@pytest.mark.usefixtures("slurm")
def test_the_same_command_mends_disturbed_runs(tmp_path: Path) -> None:
    result = kills_slurm.history(tmp_path, seed=1)
    assert result["kills"]
    assert kills.is_good(result), result
