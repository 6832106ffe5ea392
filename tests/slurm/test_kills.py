"""Short form of the campaign of disturbed runs on Slurm."""

import os
from pathlib import Path

import pytest
from benchmarks import kills, kills_slurm
from tests.slurm import cluster

pytestmark = [pytest.mark.slow, pytest.mark.campaign]
if "DPSWEEP_TEST_SLURM" not in os.environ:
    pytest.skip("takes a cluster: make test-slurm", allow_module_level=True)


def test_the_same_command_mends_disturbed_runs(tmp_path: Path) -> None:
    if reason := cluster.missing():
        pytest.skip(reason)
    cluster.start()
    try:
        result = kills_slurm.history(tmp_path, seed=1)
    finally:
        cluster.stop()
    assert result["kills"]
    assert kills.is_good(result), result
