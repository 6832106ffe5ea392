"""Ctrl-C ends a run with status 130 and one message, whatever kind of job runs."""

import copy
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from tests.waiting import wait_for
from tests.workflow.tiny import STUDY, SWEEP, TinyChain

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> TinyChain:
    return TinyChain(tmp_path_factory.mktemp("interrupted") / "study")


# In the order in which they run: each call goes on where the last one was interrupted.
@pytest.mark.parametrize("kind", ["data", "backbones", "cells", "gradnorms", "theory", "figures"])
def test_an_interrupted_run_says_so_once(chain: TinyChain, kind: str) -> None:
    logs = chain.results / "logs" / kind
    # An earlier call may have made some: they are made again.
    for folder in (logs, chain.results / kind):
        shutil.rmtree(folder, ignore_errors=True)
    said = chain.folder / f"{kind}.txt"
    with said.open("wb") as stream:
        run = subprocess.Popen(
            # As in a terminal: signals as the system has them, to all processes of the group.
            [
                "env",
                "--default-signal=INT,HUP",
                *chain.command("all", options=("--logger", "dpsweep")),
            ],
            env=chain.environment | {"DPSWEEP_CALL": "dpsweep run study.yaml"},
            start_new_session=True,
            stdout=stream,
            stderr=stream,
        )
        wait_for(lambda: list(logs.rglob("*.log")), f"a job of {kind}", run, every=0.01)
        os.killpg(run.pid, signal.SIGINT)
        status = run.wait()
    text = said.read_text()
    assert status == 128 + signal.SIGINT, text
    assert text.count("interrupted; the same command continues:\n  dpsweep run study.yaml") == 1
    for wrong in ("Exception", "Error", "Traceback", "kill", "Bad file descriptor"):
        assert wrong not in text, text


def test_an_interrupted_plan_says_so_once(tmp_path: Path) -> None:
    # Many cells: planning takes seconds.
    study = copy.deepcopy(STUDY)
    study["sweeps"][SWEEP]["clipping_bound"] = [1 + 0.01 * step for step in range(500)]
    chain = TinyChain(tmp_path / "study", study)
    said = tmp_path / "said.txt"
    with said.open("wb") as stream:
        run = subprocess.Popen(
            ["env", "--default-signal=INT,HUP", *chain.command("all")],
            env=chain.environment | {"DPSWEEP_CALL": "dpsweep run study.yaml"},
            start_new_session=True,
            stdout=stream,
            stderr=stream,
        )
        wait_for(lambda: "Building DAG" in said.read_text(), "a plan", run, every=0.01)
        for _ in range(2):  # as impatient people do
            os.killpg(run.pid, signal.SIGINT)
        status = run.wait()
    text = said.read_text()
    assert status == 128 + signal.SIGINT, text
    assert text.count("interrupted; the same command continues:\n  dpsweep run study.yaml") == 1
    assert "Traceback" not in text
    assert not list((chain.folder / ".snakemake" / "locks").glob("*.lock"))


def test_the_same_command_continues(chain: TinyChain) -> None:
    said = subprocess.run(
        chain.command("all", options=("--logger", "dpsweep")),
        env=chain.environment | {"DPSWEEP_CALL": "dpsweep run study.yaml"},
        stderr=subprocess.PIPE,
        text=True,
        check=True,
    ).stderr
    assert said.splitlines()[-1] == f"Report: {chain.results / 'report.html'}"
    assert (chain.results / "report.html").exists()
    assert not list(Path(chain.folder, ".snakemake", "locks").glob("*.lock"))
