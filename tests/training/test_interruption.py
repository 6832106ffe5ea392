"""A training process that is told to stop, as a scheduler does it."""

import logging
import multiprocessing
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from multiprocessing.context import ForkProcess
from pathlib import Path

import pandas as pd
import pytest
import yaml
from tests.training.tiny_study import tiny_sections
from tests.waiting import PATIENCE

from dpsweep.cli import stages
from dpsweep.study import Cell, load_study
from dpsweep.study.paths import Paths
from dpsweep.training.job import EXIT_AGAIN, EXIT_TERMINATED, interruption, watched

PROBLEM, CELL = "digits_vit_method", "eps8_epochs30_B32_C1"
SECTIONS = tiny_sections({}, {"kind": "film"}, epochs=[30], batch_size=[32])


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study whose one cell trains for seconds, with everything but the cell."""
    file = tmp_path_factory.mktemp("prepared") / "study.yaml"
    write_study(file)
    stages.prepare_dataset("digits", file)
    stages.prepare_backbone("vit", file)
    stages.calibrate("digits", 8.0, 30, "32", file)
    return file


def write_study(file: Path) -> None:
    file.write_text(yaml.safe_dump(SECTIONS | {"results": str(file.parent / "results")}))


def copied(prepared: Path, folder: Path) -> Path:
    shutil.copytree(prepared.parent, folder)
    write_study(folder / "study.yaml")
    return folder / "study.yaml"


@pytest.fixture
def file(prepared: Path, tmp_path: Path) -> Path:
    return copied(prepared, tmp_path / "copy")


def train(file: Path, log: Path) -> ForkProcess:
    """Train the cell in a process of its own, as its job does; see that it has begun."""

    def job() -> None:
        logging.basicConfig(filename=log, level=logging.INFO, force=True)
        stages.train(PROBLEM, CELL, file)

    process = multiprocessing.get_context("fork").Process(target=job)
    process.start()
    deadline = time.monotonic() + PATIENCE
    while not (log.exists() and f"{PROBLEM}/{CELL} on" in log.read_text()):
        assert process.is_alive() and time.monotonic() < deadline
        time.sleep(0.01)
    return process


def ended(process: ForkProcess) -> int | None:
    process.join(PATIENCE)
    return process.exitcode


def measured(file: Path) -> pd.DataFrame:
    study = load_study(file)
    cell = Cell.parse(PROBLEM, CELL)
    rows = pd.read_parquet(Paths(Path(study.results)).cell_trials(study, cell))
    return rows[[column for column in rows if "second" not in column]]


def stored(file: Path) -> list[Path]:
    found = Path(load_study(file).results).glob("trials/*/*.safetensors")
    return [each for each in found if ".parameters." not in each.name]


def test_stopped_trial_goes_on_and_ends_the_same(
    prepared: Path, file: Path, tmp_path: Path
) -> None:
    """First its time is over, then it is to end for good, then it is called once more."""
    step = None
    for number, status in ((signal.SIGUSR1, EXIT_AGAIN), (signal.SIGTERM, EXIT_TERMINATED)):
        log = file.with_name(number.name)
        process = train(file, log)
        time.sleep(0.3)
        assert process.pid is not None
        os.kill(process.pid, number)
        assert ended(process) == status
        said = log.read_text()
        assert step is None or f"continuing from step {step}" in said
        saved = re.search(r"checkpoint at step (\d+)", said)
        assert saved, said
        step = saved[1]
        assert "Traceback" not in said
        assert not stored(file)
    log = file.with_name("last")
    assert ended(train(file, log)) == 0
    assert f"continuing from step {step}" in log.read_text()
    whole = copied(prepared, tmp_path / "whole")
    assert ended(train(whole, tmp_path / "log")) == 0
    pd.testing.assert_frame_equal(measured(file), measured(whole))


def test_two_jobs_of_one_cell_do_no_harm(file: Path) -> None:
    jobs = [train(file, file.with_name(name)) for name in ("one", "other")]
    assert [ended(each) for each in jobs] == [0, 0]
    assert len(stored(file)) == len(measured(file)) == 1
    left = list(file.parent.rglob("*"))
    assert not [each for each in left if ".partial" in each.name or each.suffix == ".checkpoint"]


@pytest.fixture
def watching() -> Iterator[None]:
    with watched():
        yield


@pytest.mark.usefixtures("watching")
@pytest.mark.parametrize(
    ("signals", "saved", "status"),
    [
        ([], True, None),
        ([signal.SIGUSR1], True, EXIT_AGAIN),
        # Without progress, another call would fare no better.
        ([signal.SIGUSR1], False, EXIT_TERMINATED),
        # The end for good wins.
        ([signal.SIGUSR1, signal.SIGTERM], True, EXIT_TERMINATED),
        ([signal.SIGTERM, signal.SIGUSR1], True, EXIT_TERMINATED),
    ],
)
def test_the_status_says_whether_to_call_again(
    signals: list[signal.Signals], saved: bool, status: int | None
) -> None:
    for each in signals:
        os.kill(os.getpid(), each)
    stop = interruption(saved=saved)
    assert (stop and stop.code) == status


def test_handlers_are_given_back() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGUSR1)
    with watched():
        assert signal.getsignal(signal.SIGTERM) != before[0]
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGUSR1)) == before
    assert interruption(saved=True) is None
