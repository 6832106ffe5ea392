"""Ctrl-C ends a run with status 130 and one message, whatever kind of job runs; SIGTERM ends it too."""

import copy
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.waiting import wait_for
from tests.workflow.chain import as_in_a_terminal
from tests.workflow.tiny import STUDY, SWEEP, TinyChain

from dpsweep.study.find import PROJECT

pytestmark = pytest.mark.slow

CALL = "dpsweep run study.yaml"


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> TinyChain:
    return TinyChain(tmp_path_factory.mktemp("interrupted") / "study")


def interrupt(
    chain: TinyChain, when: Callable[[], object], *options: str, times: int = 1
) -> tuple[int, str]:
    """Press Ctrl-C in a run when something holds; return its exit status and what it said."""
    run = chain.start(options=options, environment=chain.environment | {"DPSWEEP_CALL": CALL})
    wait_for(when, "moment to interrupt", run, every=0.01)
    for _ in range(times):
        os.killpg(run.pid, signal.SIGINT)
    return run.wait(), chain.said


def says_so_once(status: int, said: str) -> None:
    assert status == 128 + signal.SIGINT, said
    assert said.count(f"interrupted; the same command continues:\n  {CALL}") == 1
    assert "Traceback" not in said


# In the order in which they run: each call goes on where the last one was interrupted.
@pytest.mark.parametrize("kind", ["data", "backbones", "cells", "gradnorms", "theory", "figures"])
def test_an_interrupted_run_says_so_once(chain: TinyChain, kind: str) -> None:
    logs = chain.results / "logs" / kind
    # An earlier call may have made some: they are made again.
    for folder in (logs, chain.results / kind):
        shutil.rmtree(folder, ignore_errors=True)
    status, said = interrupt(chain, lambda: list(logs.rglob("*.log")), "--logger", "dpsweep")
    says_so_once(status, said)
    for wrong in ("Exception", "Error", "kill", "Bad file descriptor"):
        assert wrong not in said, said


def test_an_interrupted_plan_says_so_once(tmp_path: Path) -> None:
    # Many cells: planning takes seconds.
    study = copy.deepcopy(STUDY)
    study["sweeps"][SWEEP]["clipping_bound"] = [1 + 0.01 * step for step in range(500)]
    chain = TinyChain(tmp_path / "study", study)
    # Twice, as impatient people do.
    status, said = interrupt(chain, lambda: "Building DAG" in chain.said, times=2)
    says_so_once(status, said)
    assert not list((chain.folder / ".snakemake" / "locks").glob("*.lock"))


def test_the_same_command_continues(chain: TinyChain) -> None:
    environment = chain.environment | {"DPSWEEP_CALL": CALL}
    assert chain.start(options=("--logger", "dpsweep"), environment=environment).wait() == 0
    assert chain.said.splitlines()[-1] == f"Report: {chain.results / 'report.html'}"
    assert (chain.results / "report.html").exists()
    assert not list((chain.folder / ".snakemake" / "locks").glob("*.lock"))


# Snakemake holds its scheduler's lock while it records a job that has ended; here it takes its time.
SLOW_RECORDS = """
import time
from pathlib import Path

from snakemake.persistence import PersistenceBase

record = PersistenceBase.finished


async def finished(self, job):
    Path("recording").touch()
    time.sleep(5)
    await record(self, job)


PersistenceBase.finished = finished


module dpsweep:
    snakefile:
        "{snakefile}"
    config:
        {{"study": "study.yaml"}}


use rule * from dpsweep
"""


def test_sigterm_ends_a_run_while_an_ended_job_is_recorded(tmp_path: Path) -> None:
    chain = TinyChain(tmp_path)
    text = SLOW_RECORDS.format(snakefile=PROJECT / "Snakefile")
    (tmp_path / "Snakefile").write_text(text)
    command = [sys.executable, "-m", "snakemake", "--cores", "2", "--", "all"]
    run = as_in_a_terminal(command, tmp_path, chain.environment, tmp_path / "said.txt")
    wait_for((tmp_path / "recording").exists, "record", run, every=0.01)
    os.killpg(run.pid, signal.SIGTERM)
    try:
        assert run.wait(timeout=120) == 1
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
