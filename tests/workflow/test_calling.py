"""Calls of the workflow from another folder, without an activated environment, and with SIGTERM."""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from benchmarks.common import snakemake
from tests.waiting import PATIENCE, called, wait_for
from tests.workflow.chain import ROOT

from dpsweep.study import load_study
from dpsweep.study.paths import Paths

STUDY = f"""\
extends: {ROOT}/studies/demo.yaml
results: results
privacy: {{check_with_opacus: false}}
figures: none
"""


@pytest.mark.slow
def test_the_workflow_runs_without_an_activated_environment(tmp_path: Path) -> None:
    study = tmp_path / "mine.yaml"
    study.write_text(STUDY)
    noise = str(Paths(Path("results")).noise(load_study(study), "digits", 8.0, 4, 64))
    called(
        snakemake(tmp_path, "--config", f"study={study}", "--", noise),
        tmp_path,
        os.environ | {"PATH": os.defpath},
    )
    assert (tmp_path / noise).exists()


@pytest.mark.slow
def test_sigterm_ends_a_run_as_ctrl_c_does(tmp_path: Path) -> None:
    """Snakemake's own handler waits for a lock that its thread may hold; then the run never ends."""
    (tmp_path / "mine.yaml").write_text(STUDY)
    run = subprocess.Popen(
        snakemake(tmp_path, "--config", "study=mine.yaml", "--", "all"),
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=(tmp_path / "said.txt").open("w"),
    )
    said = tmp_path / "said.txt"
    wait_for(lambda: "Select jobs to execute" in said.read_text(), "jobs", run)
    run.send_signal(signal.SIGTERM)
    # Inside a function of a rule, Snakemake reports the signal as an error of the rule, and ends as well.
    assert run.wait(timeout=PATIENCE) in (1, -signal.SIGINT)
    assert re.search("Terminating processes on user request|KeyboardInterrupt", said.read_text())
