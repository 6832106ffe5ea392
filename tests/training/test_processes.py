"""Several processes train the model of one process, with its noise; signals, and exit statuses."""

import logging
import math
import os
import pickle
import signal
import socket
import threading
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pandas as pd
import pytest
import torch
from tests.training.tiny_net import N, data, flat, net, private, split
from tests.training.tiny_study import Prepared
from tests.waiting import running, wait_for
from torch import Tensor, distributed, multiprocessing, nn

from dpsweep.cli.options import training
from dpsweep.planning.plan import STOPPED
from dpsweep.privacy.calibration import calibrate
from dpsweep.study import Study
from dpsweep.study.clipping import FlatClipping
from dpsweep.study.paths import Paths
from dpsweep.training import processes
from dpsweep.training import trial as trial_module
from dpsweep.training.cell import run_cell
from dpsweep.training.gradient_norms import measure_gradient_norms
from dpsweep.training.optimizer import PrivateOptimizer
from dpsweep.training.physical import MicroBatches, PhysicalBatch, part_size
from dpsweep.training.private_training import PrivateTraining
from dpsweep.training.processes import (
    EXIT_AGAIN,
    EXIT_TERMINATED,
    Interrupted,
    NetworkRefusedError,
    ProcessError,
    interruption,
    launch,
    refuse_network,
    watched,
)
from dpsweep.training.randomness import GaussianNoise
from dpsweep.training.store import save_checkpoint

BATCH_SIZES = (13, 0, 1, 2, 40)
"""Of five steps: the second is empty, and the next two have fewer examples than micro-batches."""


def with_adam(
    model: nn.Module, noise_multiplier: float, secret: bytes = b"same"
) -> PrivateOptimizer:
    adam = torch.optim.Adam(model.parameters(), lr=0.1)
    stream = GaussianNoise("noise", secret=secret + str(noise_multiplier).encode())
    return private(model, adam, noise_multiplier=noise_multiplier, noise=stream)


def micro_batches(examples: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    return list(split(np.arange(examples), 3))


def steps(noise_multiplier: float) -> tuple[Tensor, list[list[float]]]:
    """Return the parameters after each step, and its statistics."""
    model = net()
    optimizer = with_adam(model, noise_multiplier)
    after, statistics = [], []
    for size in BATCH_SIZES:
        statistics.append([float(each) for each in optimizer.step(micro_batches(size))])
        after.append(flat(model))
    return torch.stack(after), statistics


def with_a_unit_in_two_processes() -> None:
    with_adam(net(), 1.0, b"units").step([(*each, [5, 5, 5]) for each in micro_batches(6)])


def with_secrets_of_their_own() -> None:
    optimizer = with_adam(net(), 1.0, secret=f"of process {processes.rank()}".encode())
    optimizer.step(micro_batches(4))


def with_models_of_their_own() -> None:
    model = net()
    with torch.no_grad():
        next(model.parameters()).add_(processes.rank() * 1e-15)
    with_adam(model, 0.0, secret=b"models").step(micro_batches(4))


def failing_once(error: Exception) -> tuple[Tensor, list[int]]:
    """Take one step, whose first attempt fails in the second process while it loads its share."""
    model, sizes = net(), list[int]()
    optimizer = with_adam(model, 1.0, secret=type(error).__name__.encode())
    inputs, labels = data()

    def load(rows):
        if processes.rank() == 1 and len(sizes) == 1:
            raise error
        return inputs[rows], labels[rows], torch.ones(len(rows), dtype=torch.bool)

    def take(size):
        sizes.append(size)
        optimizer.step(MicroBatches(torch.arange(16).split(size), load))

    PhysicalBatch(8).fit(take)
    return flat(model), sizes


def whole_training() -> tuple[Tensor, bytes, list[list[int]], list[int]]:
    """Return parameters, secret, sampled rows, and the sizes of the micro-batches of this process."""
    model, (inputs, labels), sizes = net(), data(), list[int]()

    class Recorded:
        def __len__(self):
            return N

        def __getitem__(self, rows):
            sizes.append(len(rows))
            return inputs[rows]

    training = PrivateTraining(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        clipping=FlatClipping(1.0),
        calibration=calibrate(math.inf, 1e-3, N, 10, 4),
        physical_batch=4 + processes.rank(),
    )
    sampled = []
    for batch in training.batches(Recorded(), labels):
        training.step(batch)
        sampled.append(batch.rows.tolist())
    return flat(model), training.state_dict()["secret"], sampled, sizes


SCENARIOS: dict[str, Callable[[], Any]] = {
    "noise": lambda: steps(1.0),
    "no noise": lambda: steps(0.0),
    "secrets": with_secrets_of_their_own,
    "models": with_models_of_their_own,
    "memory": lambda: failing_once(torch.OutOfMemoryError("out of memory")),
    "error": lambda: failing_once(KeyError("a file")),
    "training": whole_training,
    "opacus": lambda: private(net(), noise=GaussianNoise("noise", secret=b""), engine="opacus"),
    "unit": with_a_unit_in_two_processes,
}


def join(rank: int, folder: Path) -> None:
    """Join a group of two processes, and write the result, or the error, of each scenario."""
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    found: dict[str, Any] = {}
    for name, scenario in SCENARIOS.items():
        try:
            found[name] = scenario()
        except Exception as error:
            found[name] = error
    (folder / f"{rank}.pkl").write_bytes(pickle.dumps(found))
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """The results in each of two processes."""
    folder = tmp_path_factory.mktemp("group")
    # Forked, so that they need no imports, and have a bug that is planted in this process.
    multiprocessing.start_processes(join, (folder,), nprocs=2, start_method="fork")
    return [pickle.loads((folder / f"{rank}.pkl").read_bytes()) for rank in range(2)]  # noqa: S301


@pytest.mark.parametrize("name", ["noise", "no noise"])
def test_two_processes_take_the_steps_of_one(two, name):
    expected, statistics = SCENARIOS[name]()
    for found in two:
        after, theirs = found[name]
        torch.testing.assert_close(after, expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(torch.tensor(theirs), torch.tensor(statistics))
    assert torch.equal(two[0][name][0], two[1][name][0])


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("secrets", ProcessError, "processes 0 and 1 of 2 have different noise"),
        ("models", ProcessError, "processes 0 and 1 of 2 have different parameters"),
        ("opacus", ValueError, "engine opacus"),
        # Clipped once in each process, it would have twice the influence.
        ("unit", ValueError, "rows of unit 5 in two micro-batches"),
    ],
)
def test_processes_that_differ_are_refused(two, name, error, message):
    for found in two:
        assert isinstance(found[name], error)
        assert message in str(found[name])


def test_out_of_memory_in_one_process_halves_the_batch_of_both(two):
    expected, _ = SCENARIOS["memory"]()
    for found in two:
        after, sizes = found["memory"]
        assert sizes == [8, 4]
        torch.testing.assert_close(after, expected, rtol=0, atol=1e-12)


def test_an_error_in_one_process_ends_the_step_of_both(two):
    assert isinstance(two[0]["error"], ProcessError)
    assert isinstance(two[1]["error"], KeyError)


def test_a_private_training_shares_its_secret_and_divides_its_batches(two):
    (first, secret, sampled, mine), (second, other, theirs, rest) = (
        each["training"] for each in two
    )
    assert secret == other
    assert sampled == theirs
    assert torch.equal(first, second)
    assert sum(mine) + sum(rest) == sum(map(len, sampled))
    assert max(mine + rest) <= 4  # the smallest physical batch of both


def test_each_process_takes_an_equal_number_of_equal_micro_batches(monkeypatch):
    monkeypatch.setattr(processes, "count", lambda: 2)
    assert part_size(256, 256) == 128
    assert part_size(300, 100) == 75
    assert part_size(0, 100) == 1


# -- a cell that several processes train ------------------------------------------------------

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


# -- signals, and the refused network ---------------------------------------------------------


@pytest.fixture
def made(tiny, tmp_path):
    """A study with one cell."""
    return tiny.of({}, {"kind": "film"}, epochs=[3], batch_size=[32]).ready(tmp_path)


def started(made: Prepared, log: Path, number: signal.Signals | None = None) -> ForkProcess:
    """Start to train the cell in a separate process, which gets a signal in its fourth step."""
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
            train(*made[:2])

    process = get_context("fork").Process(target=job)
    process.start()
    return process


def ended(process: ForkProcess) -> int | None:
    process.join()
    return process.exitcode


def measured(made: Prepared) -> pd.DataFrame:
    rows, _ = results(*made[:2])
    return rows[[column for column in rows if "second" not in column]]


def stored(made: Prepared) -> list[Path]:
    found = made.paths.trials.glob("*/*.safetensors")
    return [each for each in found if ".parameters." not in each.name]


def test_a_stopped_trial_resumes_to_the_same_result(tiny, made, tmp_path):
    """Send SIGUSR1 to the first call, SIGTERM to the second, and let the third finish."""
    step = None
    for number, status in ((signal.SIGUSR1, EXIT_AGAIN), (signal.SIGTERM, EXIT_TERMINATED)):
        log = tmp_path / number.name
        assert ended(started(made, log, number)) == status
        said = log.read_text()
        assert step is None or f"continuing from step {step}" in said
        step = 4 if step is None else step + 4
        assert f"checkpoint at step {step}" in said
        assert "Traceback" not in said
        assert not stored(made)
    assert ended(started(made, tmp_path / "last")) == 0
    assert f"continuing from step {step}" in (tmp_path / "last").read_text()
    (tmp_path / "whole").mkdir()
    whole = tiny._replace(study=made.study).ready(tmp_path / "whole")
    assert ended(started(whole, tmp_path / "log")) == 0
    pd.testing.assert_frame_equal(measured(made), measured(whole))


def test_two_jobs_can_train_the_same_cell(made, tmp_path):
    jobs = [started(made, tmp_path / name) for name in ("one", "other")]
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
