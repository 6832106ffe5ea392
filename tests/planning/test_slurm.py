"""What Slurm says of jobs, as the executor reads it; squeue and scancel are scripts."""

from pathlib import Path

import pytest

from dpsweep.planning import slurm

SAID = """\
7|RUNNING|None
8|PENDING|Resources
9|PENDING|launch failed requeued held
10|CANCELLED|launch failed requeued held
"""


@pytest.fixture
def cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which scancel notes its arguments."""
    said, noted = tmp_path / "said.txt", tmp_path / "cancelled.txt"
    said.write_text(SAID)
    for name, command in (("squeue", f"cat {said}"), ("scancel", f"echo $* >> {noted}")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{command}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return noted


def test_a_job_that_slurm_holds_for_ever_has_failed(cancelled: Path) -> None:
    states = slurm.states("dpsweep")
    assert [number for number, state in states.items() if slurm.failed(state)] == ["9", "10"]
    assert (states["7"], states["8"]) == ("RUNNING", "PENDING")
    assert cancelled.read_text().split() == ["9"]


def test_what_has_ended_and_what_may_come_back() -> None:
    """A job that Slurm does not know any more has ended; one that lost its node may be requeued."""
    known = ("RUNNING", "PENDING", "COMPLETED", "NODE_FAIL", "PREEMPTED", "TIMEOUT", "FAILED", None)
    assert [state for state in known if slurm.lost(state)] == ["NODE_FAIL", "PREEMPTED", None]
    assert [state for state in known if slurm.failed(state)] == ["TIMEOUT", "FAILED"]
