"""The workflow of an installed package runs in an empty folder, without a clone."""

import sys
from pathlib import Path

import pytest
from tests.waiting import called

# One trial on a network without weights.
TINY = """\
extends: demo
results: results/tiny
privacy: {check_with_opacus: false}
audit: null
sweeps: !replace
  tiny: {dataset: digits-tenth, backbone: vit-random, method: film, epsilon: [8], epochs: [1],
    batch_size: [full], clipping_bound: [1], learning_rate: [0.01], seeds: 1}
roles: !replace
  datasets: {main: digits-tenth}
  backbones: {weak: vit-random}
  methods: {main: film}
figures: none
"""
SUBMIT = """\
#!/bin/sh
# Like the command of a scheduler: start the job elsewhere, and print its number.
nohup sh "$1" > /dev/null 2>&1 &
echo $! | tee -a submitted
"""


@pytest.mark.nightly
def test_a_study_runs_in_an_empty_folder_by_the_commands_of_another_scheduler(
    installed: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "tiny.yaml").write_text(TINY)
    submit = tmp_path / "submit.sh"
    submit.write_text(SUBMIT)
    submit.chmod(0o755)
    cluster = ("--executor", "cluster-generic", "--cluster-generic-submit-cmd", str(submit))
    run = [sys.executable, "-m", "dpsweep", "run", "--"]
    called([*run, *cluster, "--jobs", "2"], tmp_path, installed)
    assert (tmp_path / "results" / "tiny" / "report.html").exists()
    # Only the cell is submitted; jobs without a GPU run here.
    assert len((tmp_path / "submitted").read_text().splitlines()) == 1
    # A profile of the package is copied, to be edited.
    done = called([*run, "--profile", "slurm", "-n"], tmp_path, installed)
    assert "Nothing to be done" in done.stdout + done.stderr
    assert (tmp_path / "profiles" / "slurm" / "config.yaml").exists()
