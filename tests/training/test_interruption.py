"""A training process that gets signals to stop, as from a scheduler."""

import logging
import multiprocessing
import os
import signal
from collections.abc import Iterator
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.training.tiny_study import N, Prepared, calibrate

from dpsweep.cli.options import training
from dpsweep.planning.status import STOPPED
from dpsweep.privacy.record import write_calibration
from dpsweep.training.cell import run_cell
from dpsweep.training.job import EXIT_AGAIN, EXIT_TERMINATED, interruption, watched
from dpsweep.training.optimizer import PrivateOptimizer, StepStatistics


@pytest.fixture
def made(tiny: Prepared, tmp_path: Path) -> Prepared:
    """A study with one cell."""
    return tiny.of({}, {"kind": "film"}, epochs=[3], batch_size=[32]).copied(tmp_path)


def train(made: Prepared, log: Path, number: signal.Signals | None = None) -> ForkProcess:
    """Start to train the cell in a separate process, which gets a signal in its fourth step."""
    study, paths, *_ = made
    (cell,) = study.all_cells()
    steps = study.steps("digits", cell.epochs, 32)
    noise = calibrate(8.0, 1e-5, N, 32, steps)
    write_calibration(paths.noise(study, "digits", 8.0, cell.epochs, 32), noise)

    take, taken = PrivateOptimizer.step, []

    def step(optimizer: PrivateOptimizer, batches: Any) -> StepStatistics:
        taken.append(optimizer)
        if number is not None and len(taken) == 4:
            os.kill(os.getpid(), number)
        return take(optimizer, batches)

    def job() -> None:
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
    whole = tiny.copied(tmp_path / "whole")._replace(study=made.study)
    assert ended(train(whole, tmp_path / "log")) == 0
    pd.testing.assert_frame_equal(measured(made), measured(whole))


def test_two_jobs_can_train_the_same_cell(tiny, tmp_path):
    made = tiny.of({}, {"kind": "film"}, epochs=[3], batch_size=[32]).copied(tmp_path)
    jobs = [train(made, tmp_path / name) for name in ("one", "other")]
    assert [ended(each) for each in jobs] == [0, 0]
    assert len(stored(made)) == len(measured(made)) == 1
    left = list(tmp_path.rglob("*"))
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
        # Without progress, another call would fail too.
        ([signal.SIGUSR1], False, EXIT_TERMINATED),
        # SIGTERM wins.
        ([signal.SIGUSR1, signal.SIGTERM], True, EXIT_TERMINATED),
        ([signal.SIGTERM, signal.SIGUSR1], True, EXIT_TERMINATED),
    ],
)
def test_the_exit_status_tells_whether_to_call_again(signals, saved, status):
    for each in signals:
        os.kill(os.getpid(), each)
    stop = interruption(saved=saved)
    assert (stop and stop.code) == status


def test_a_job_logs_that_ctrl_c_ended_it(caplog):
    caplog.set_level(logging.INFO)
    with pytest.raises(KeyboardInterrupt), watched():
        raise KeyboardInterrupt
    assert STOPPED.fullmatch(caplog.messages[-1])
