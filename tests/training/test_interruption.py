"""A training process that is told to stop, as a scheduler does it."""

import copy
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from tests.waiting import PATIENCE
from tests.workflow.chain import STUDY, Chain

from dpsweep.training.job import EXIT_AGAIN, EXIT_TERMINATED, interruption, watched

SWEEP = "digits_vit_film"
CELL = "eps8_epochs20_B32_C1"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    """A study whose one cell trains for many seconds, with everything but the cell."""
    study = copy.deepcopy(STUDY)
    study["sweeps"][SWEEP] |= {"epochs": [20], "batch_size": [32], "clipping_bound": [1.0]}
    study["sweeps"][SWEEP] |= {"learning_rate": [0.01], "seeds": 1}
    study["figures"] = study["tables"] = {}
    chain = Chain(tmp_path_factory.mktemp("prepared"), study)
    chain.run(
        "results/data/digits/metadata.json",
        "results/backbones/vit/metadata.json",
        "results/noise/digits/eps8_epochs20_B32.json",
    )
    return chain


@pytest.fixture(scope="module")
def uninterrupted(prepared: Chain, tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    chain = copied(prepared, tmp_path_factory.mktemp("uninterrupted"))
    process = train(chain)
    _, log = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, log
    return _measured(chain)


@pytest.fixture
def chain(prepared: Chain, tmp_path: Path) -> Chain:
    return copied(prepared, tmp_path)


def copied(prepared: Chain, folder: Path) -> Chain:
    shutil.copytree(prepared.folder, folder / "copy")
    return Chain(folder / "copy", prepared.study)


def train(chain: Chain) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "dpsweep.cli", "train", "--study", "study.yaml", SWEEP, CELL]
    return subprocess.Popen(
        command, cwd=chain.folder, env=chain.environment, stderr=subprocess.PIPE, text=True
    )


def first_line(process: "subprocess.Popen[str]") -> str:
    """Wait until training is under way."""
    assert process.stderr is not None
    return process.stderr.readline()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGUSR1, EXIT_AGAIN), (signal.SIGTERM, EXIT_TERMINATED)]
)
def test_stopped_trial_goes_on_and_ends_the_same(
    uninterrupted: pd.DataFrame, chain: Chain, number: signal.Signals, status: int
) -> None:
    process = train(chain)
    first_line(process)
    time.sleep(1)
    process.send_signal(number)
    _, log = process.communicate(timeout=PATIENCE)
    assert process.returncode == status
    saved = re.search(r"checkpoint at step (\d+)", log)
    assert saved, log
    assert "Traceback" not in log
    assert not chain.stored_trials()

    again = train(chain)
    _, log = again.communicate(timeout=PATIENCE)
    assert again.returncode == 0, log
    assert f"continuing from step {saved[1]}" in log
    pd.testing.assert_frame_equal(_measured(chain), uninterrupted)


@pytest.mark.slow
def test_two_jobs_of_one_cell_do_no_harm(chain: Chain) -> None:
    processes = [train(chain), train(chain)]
    logs = [process.communicate(timeout=PATIENCE)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], logs
    assert len(chain.stored_trials()) == len(_measured(chain)) == 1
    leftovers = [path for path in chain.results.rglob("*") if ".partial" in path.name]
    assert not leftovers
    assert not list(chain.results.rglob("*.checkpoint"))


def _measured(chain: Chain) -> pd.DataFrame:
    rows = pd.read_parquet(chain.results / "cells" / SWEEP / CELL / "trials.parquet")
    return rows[[column for column in rows if "second" not in column]]


@pytest.fixture
def watching() -> Iterator[None]:
    with watched():
        yield


@pytest.mark.usefixtures("watching")
def test_time_limit_without_progress_is_not_called_again() -> None:
    assert interruption(saved=True) is None
    os.kill(os.getpid(), signal.SIGUSR1)
    stop = interruption(saved=False)
    assert stop is not None
    assert stop.code == EXIT_TERMINATED
    stop = interruption(saved=True)
    assert stop is not None
    assert stop.code == EXIT_AGAIN


@pytest.mark.usefixtures("watching")
@pytest.mark.parametrize("order", [("SIGUSR1", "SIGTERM"), ("SIGTERM", "SIGUSR1")])
def test_the_end_for_good_wins(order: tuple[str, str]) -> None:
    for name in order:
        os.kill(os.getpid(), getattr(signal, name))
    stop = interruption(saved=True)
    assert stop is not None
    assert stop.code == EXIT_TERMINATED


def test_handlers_are_given_back() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGUSR1)
    with watched():
        assert signal.getsignal(signal.SIGTERM) != before[0]
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGUSR1)) == before
    assert interruption(saved=True) is None
