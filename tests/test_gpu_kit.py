"""The GPU kit continues after a kill; tests/test_layers.py has the libraries that it needs."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import wait_for

ROOT = Path(__file__).parents[1]


def start(folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.gpu", str(folder / "inputs"), "--rehearse"],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.mark.nightly
def test_the_kit_continues_after_a_kill_and_runs_to_its_end(tmp_path: Path) -> None:
    results = tmp_path / "inputs" / "rehearsal"
    first = start(tmp_path)
    wait_for(lambda: list(results.glob("*.json")), "result", first)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    kept = {path: path.stat().st_mtime_ns for path in results.glob("*.json")}
    said, _ = start(tmp_path).communicate()
    assert "Everything is done." in said, said
    assert all(path.stat().st_mtime_ns == written for path, written in kept.items())
    written = {path.stem: json.loads(path.read_text()) for path in results.glob("*.json")}
    assert {"right_noise", "right_resume", "noise_cost", "cell"} <= written.keys()
    moved = written["right_resume"]["largest_relative_differences"]
    assert moved == {"twice": 0.0, "stopped": 0.0, "to the GPU": 0.0, "to the CPU": 0.0}
