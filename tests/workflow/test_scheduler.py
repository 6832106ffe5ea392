"""The scheduler sleeps while jobs are ready and no slot is free."""

import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.common import snakemake
from tests.workflow.chain import ROOT

# Every pass of Snakemake's scheduler with a ready job starts one, if jobs per second are limited.
COUNTS_TIMERS = """\
import sys, threading
start = threading.Timer.start
def counted(timer):
    print("a timer", flush=True)
    start(timer)
threading.Timer.start = counted
from snakemake.cli import main
main(sys.argv[1:])
"""


@pytest.mark.slow
def test_no_timer_wakes_the_scheduler(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(f"extends: {ROOT}/studies/demo.yaml\nresults: results\n")
    data = "results/data/digits-tail/metadata.json"
    _, _, _, *arguments = snakemake(tmp_path, "--config", "study=mine.yaml", "--", data)
    command = [sys.executable, "-c", COUNTS_TIMERS, *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (tmp_path / data).exists(), done.stderr
    assert "a timer" not in done.stdout
