"""Several processes train the model of one process, with its noise."""

import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.tiny_net import N, data, flat, net, private
from torch import Tensor, distributed, multiprocessing, nn

from dpsweep.privacy.calibration import calibrate
from dpsweep.study.clipping import FlatClipping
from dpsweep.training import processes
from dpsweep.training.optimizer import PrivateOptimizer
from dpsweep.training.physical import MicroBatches, PhysicalBatch, part_size
from dpsweep.training.private_training import PrivateTraining
from dpsweep.training.processes import ProcessError
from dpsweep.training.randomness import GaussianNoise

BATCH_SIZES = (13, 0, 1, 2, 40)
"""Of five steps: the second is empty, and the next two have fewer examples than micro-batches."""


def with_adam(
    model: nn.Module, noise_multiplier: float, secret: bytes = b"same"
) -> PrivateOptimizer:
    adam = torch.optim.Adam(model.parameters(), lr=0.1)
    stream = GaussianNoise("noise", secret=secret + str(noise_multiplier).encode())
    return private(model, adam, noise_multiplier=noise_multiplier, noise=stream)


def micro_batches(examples: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    inputs, labels = data()
    rows = torch.arange(examples)
    return [
        (inputs[each], labels[each], torch.ones(len(each), dtype=torch.bool))
        for each in rows.split(3)
        if len(each)
    ]


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
