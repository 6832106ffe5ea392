"""A cell that several processes train: the results, files, exit statuses and errors of one process."""

import os
import signal
import threading
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pandas as pd
import pytest
from tests.training.tiny_study import Prepared
from tests.waiting import running, wait_for

from dpsweep.cli.options import training
from dpsweep.study import Study
from dpsweep.study.paths import Paths
from dpsweep.training import processes
from dpsweep.training import trial as trial_module
from dpsweep.training.cell import run_cell
from dpsweep.training.gradient_norms import measure_gradient_norms
from dpsweep.training.processes import (
    EXIT_AGAIN,
    Interrupted,
    ProcessError,
    interruption,
    launch,
    watched,
)
from dpsweep.training.store import save_checkpoint

STEP = 4
"""The step after which something happens; there are eight."""


def cell_of(tiny: Prepared, folder: Path, **settings: Any) -> tuple[Study, Paths]:
    """Return a study of one cell, with its noise."""
    folder.mkdir(exist_ok=True)
    return tiny.of(settings, {"kind": "film"}, batch_size=[32]).ready(folder)[:2]


def train(study: Study, paths: Paths) -> None:
    (cell,) = study.all_cells()
    run_cell(study, paths, cell)


def train_and_measure(study: Study, paths: Paths) -> int:
    """Train the cell and measure its gradient norms; return the number of processes."""
    train(study, paths)
    processes.on_first(lambda: None)  # the first one has written the trials
    (cell,) = study.all_cells()
    measure_gradient_norms(study, paths, cell.problem, 8.0, cell.epochs, 1.0)
    return processes.count()


def train_until_killed(study: Study, paths: Paths) -> None:
    """Train the cell; after some steps, kill the second process."""

    def save_and_signal(*given):
        save_checkpoint(*given)
        if given[-1].step == STEP and processes.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(trial_module, "save_checkpoint", save_and_signal)
        train(study, paths)


def wait_for_ever(folder: Path) -> NoReturn:
    (folder / f"{os.getpid()}.started").touch()
    while True:
        threading.Event().wait()


def stop() -> None:
    """Stop as Slurm's signal to the job asks."""
    if processes.rank() == 0:
        os.kill(os.getppid() if processes.count() > 1 else os.getpid(), signal.SIGUSR1)
    while not (stopped := interruption(saved=True)):
        pass
    raise stopped


def results(study: Study, paths: Paths) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the trials of the cell, and its steps."""
    (cell,) = study.all_cells()
    return tuple(pd.read_parquet(f(study, cell)) for f in (paths.cell_trials, paths.cell_steps))


def assert_equal(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    """Compare trials up to rounding; their keys are equal."""
    assert list(found["trial_key"]) == list(expected["trial_key"])
    for name in ("accuracy", "macro_accuracy", "clipped_fraction", "loss", "mean_gradient_norm"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-3)


def test_two_processes_train_and_measure_the_cell_of_one(tiny, tmp_path):
    one, two = cell_of(tiny, tmp_path / "1"), cell_of(tiny, tmp_path / "2", gpus=2)
    assert launch(1, train_and_measure, *one) == 1
    with training(2):
        assert launch(2, train_and_measure, *two) == 2
    (expected, steps), (found, other_steps) = results(*one), results(*two)
    assert_equal(found, expected)
    assert list(other_steps["sampled_examples"]) == list(steps["sampled_examples"])
    assert found["device"].str.endswith(" x 2").all()
    (norms, others) = (
        pd.read_parquet(next(paths.results.glob("gradnorms/*/*.parquet")))
        for _, paths in (one, two)
    )
    assert list(others["label"]) == list(norms["label"])
    np.testing.assert_allclose(others["norm"], norms["norm"], rtol=1e-3)


@pytest.mark.slow
def test_a_cell_goes_on_with_one_process_after_another_was_killed(tiny, tmp_path, caplog):
    expected = cell_of(tiny, tmp_path / "1")
    train(*expected)
    killed = cell_of(tiny, tmp_path / "2", gpus=2, checkpoint_minutes=1e-9)
    with (
        training(2),
        pytest.raises(ProcessError, match=r"process 1 of 2 was ended by SIGKILL .*run the same"),
    ):
        launch(2, train_until_killed, *killed)
    assert not left_over()
    assert not list(killed[1].results.glob("cells/*/*/trials-*"))
    with caplog.at_level("INFO", "dpsweep"):
        train(*killed)
    assert f"continuing from step {STEP}" in caplog.text
    assert_equal(results(*killed)[0], results(*expected)[0])


@pytest.mark.parametrize("gpus", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_second_signal_does_not_change_the_exit_status(gpus, caplog):
    """As Python ends, it gives signals back their default action, unless they are ignored."""
    with caplog.at_level("INFO", "dpsweep"), pytest.raises(Interrupted) as stopped, watched():
        launch(gpus, stop)
    assert "stopped by SIGUSR1, exit status 75" in caplog.text
    assert stopped.value.code == EXIT_AGAIN
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN


@pytest.mark.slow
def test_no_process_outlives_a_killed_launching_process(tmp_path):
    launching = get_context("fork").Process(target=launch, args=(2, wait_for_ever, tmp_path))
    launching.start()
    started = wait_for(
        lambda: len(found := list(tmp_path.glob("*.started"))) == 2 and found, "start"
    )
    launching.kill()
    launching.join()
    wait_for(lambda: not any(running(int(each.stem)) for each in started), "end of the processes")


def left_over() -> list[str]:
    """Return the commands of children of this process that train."""
    found = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    commands = [Path(f"/proc/{each}/cmdline").read_text() for each in found]
    return [each for each in commands if "spawn_main" in each]
