"""A training process: signals to stop it, the refused network, and the settings of its cluster."""

import logging
import multiprocessing
import os
import signal
import socket
from multiprocessing.context import ForkProcess
from pathlib import Path

import pandas as pd
import pytest
from tests.training.tiny_study import Prepared

from dpsweep.cli.options import training
from dpsweep.planning.plan import STOPPED
from dpsweep.study.file import Training
from dpsweep.training.cell import run_cell
from dpsweep.training.device import check_machine
from dpsweep.training.optimizer import PrivateOptimizer
from dpsweep.training.processes import (
    EXIT_AGAIN,
    EXIT_TERMINATED,
    NetworkRefusedError,
    interruption,
    refuse_network,
    watched,
)


@pytest.fixture
def made(tiny, tmp_path):
    """A study with one cell."""
    return tiny.of({}, {"kind": "film"}, epochs=[3], batch_size=[32]).ready(tmp_path)


def train(made: Prepared, log: Path, number: signal.Signals | None = None) -> ForkProcess:
    """Start to train the cell in a separate process, which gets a signal in its fourth step."""
    study, paths, *_ = made
    (cell,) = study.all_cells()
    take, taken = PrivateOptimizer.step, []

    def step(optimizer, batches):
        taken.append(optimizer)
        if number is not None and len(taken) == 4:
            os.kill(os.getpid(), number)
        return take(optimizer, batches)

    def job():
        logging.basicConfig(filename=log, level=logging.INFO, force=True)
        with training(), pytest.MonkeyPatch.context() as patched:
            patched.setattr(PrivateOptimizer, "step", step)
            run_cell(study, paths, cell)

    process = multiprocessing.get_context("fork").Process(target=job)
    process.start()
    return process


def ended(process: ForkProcess) -> int | None:
    process.join()
    return process.exitcode


def measured(made: Prepared) -> pd.DataFrame:
    (cell,) = made.study.all_cells()
    rows = pd.read_parquet(made.paths.cell_trials(made.study, cell))
    return rows[[column for column in rows if "second" not in column]]


def stored(made: Prepared) -> list[Path]:
    found = made.paths.trials.glob("*/*.safetensors")
    return [each for each in found if ".parameters." not in each.name]


def test_a_stopped_trial_resumes_to_the_same_result(tiny, made, tmp_path):
    """Send SIGUSR1 to the first call, SIGTERM to the second, and let the third finish."""
    step = None
    for number, status in ((signal.SIGUSR1, EXIT_AGAIN), (signal.SIGTERM, EXIT_TERMINATED)):
        log = tmp_path / number.name
        assert ended(train(made, log, number)) == status
        said = log.read_text()
        assert step is None or f"continuing from step {step}" in said
        step = 4 if step is None else step + 4
        assert f"checkpoint at step {step}" in said
        assert "Traceback" not in said
        assert not stored(made)
    assert ended(train(made, tmp_path / "last")) == 0
    assert f"continuing from step {step}" in (tmp_path / "last").read_text()
    (tmp_path / "whole").mkdir()
    whole = tiny._replace(study=made.study).ready(tmp_path / "whole")
    assert ended(train(whole, tmp_path / "log")) == 0
    pd.testing.assert_frame_equal(measured(made), measured(whole))


def test_two_jobs_can_train_the_same_cell(made, tmp_path):
    jobs = [train(made, tmp_path / name) for name in ("one", "other")]
    assert [ended(each) for each in jobs] == [0, 0]
    assert len(stored(made)) == len(measured(made)) == 1
    left = list(tmp_path.rglob("*"))
    assert not [each for each in left if ".partial" in each.name or each.suffix == ".checkpoint"]


@pytest.mark.parametrize(
    ("signals", "saved", "status"),
    [
        ([], True, None),
        ([signal.SIGUSR1], True, EXIT_AGAIN),
        # Without progress, another call would fail too.
        ([signal.SIGUSR1], False, EXIT_TERMINATED),
        # SIGTERM wins.
        ([signal.SIGUSR1, signal.SIGTERM], True, EXIT_TERMINATED),
        ([signal.SIGTERM, signal.SIGUSR1], True, EXIT_TERMINATED),
    ],
)
def test_the_exit_status_tells_whether_to_call_again(signals, saved, status):
    with watched():
        for each in signals:
            os.kill(os.getpid(), each)
        stop = interruption(saved=saved)
    assert (stop and stop.code) == status


def test_a_job_logs_that_ctrl_c_ended_it(caplog):
    caplog.set_level(logging.INFO)
    with pytest.raises(KeyboardInterrupt), watched():
        raise KeyboardInterrupt
    assert STOPPED.fullmatch(caplog.messages[-1])


def test_a_job_cannot_connect_to_a_machine():
    """Unix sockets stay possible."""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", 9), timeout=1)
    refuse_network()
    with pytest.raises(NetworkRefusedError, match="reads prepared files only"):
        socket.create_connection(("127.0.0.1", 9), timeout=1)
    left, right = socket.socketpair(socket.AF_UNIX)
    left.send(b"x")
    assert right.recv(1) == b"x"


# As Slurm 22.05 and 24.11 print them.
CONFIG = """Configuration data as of 2026-11-01T10:00:00
AccountingStorageType   = {accounting}
MinJobAge               = {age} sec
PreemptExemptTime       = 00:00:00
PreemptMode             = {preempt}
PreemptType             = preempt/partition_prio

Slurmctld(primary) at node1 is UP
"""
SACCT, RETRIES, ADMINISTRATORS = "slurm-status-command: sacct", "retries: 10", "administrators"


@pytest.mark.parametrize(
    ("preempt", "age", "accounting", "advice"),
    [
        ("OFF", 300, "(null)", set()),
        ("REQUEUE", 120, "accounting_storage/slurmdbd", set()),
        ("GANG,SUSPEND", 300, "accounting_storage/slurmdbd", set()),
        ("CANCEL", 300, "accounting_storage/slurmdbd", {RETRIES}),
        ("GANG,CANCEL", 10, "accounting_storage/slurmdbd", {RETRIES, SACCT}),
        ("OFF", 60, "accounting_storage/slurmdbd", {SACCT}),
        ("OFF", 60, "(null)", {ADMINISTRATORS}),
        ("OFF", 119, "accounting_storage/none", {ADMINISTRATORS}),
    ],
)
def test_settings_of_slurm_that_need_another_profile(
    preempt, age, accounting, advice, tmp_path, monkeypatch
):
    """A script prints what ``scontrol show config`` would."""
    scontrol, written = tmp_path / "bin" / "scontrol", tmp_path / "here.txt"
    scontrol.parent.mkdir()
    config = CONFIG.format(preempt=preempt, age=age, accounting=accounting)
    scontrol.write_text(
        f'#!/bin/sh\n[ "$*" = "show config" ] || exit 3\ncat <<"END"\n{config}END\n'
    )
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{scontrol.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    check_machine(Training(), written)
    said = written.read_text()
    assert f"PreemptMode={preempt}, MinJobAge={age} s" in said
    assert {each for each in (SACCT, RETRIES, ADMINISTRATORS) if each in said} == advice
