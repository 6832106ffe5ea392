"""Time of a step of a small network with group normalisation, all parameters trained.

    python -m benchmarks.peers.speed      # a minute of processor time

Images of 28 x 28 pixels as in Fashion-MNIST, made up. The contenders take turns in each of three processes;
a number is the median of the three medians. Seconds are processor time, which other load hardly changes.

Results go to benchmarks/results/peers/speed.json; `python -m benchmarks.tables` writes docs/peers.md.
"""

import multiprocessing
import statistics
import warnings
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.common import RESULTS, command_line, environment
from benchmarks.speed.step_cost import CPU, timed, warm_up
from benchmarks.speed.steps import CONTENDERS, Row, Setting, Step, opacus
from dpsweep.base.files import write_json
from dpsweep.gradients import make_engine
from dpsweep.models.architectures import seeded
from dpsweep.study.clipping import FlatClipping
from dpsweep.training.optimizer import PrivateOptimizer
from dpsweep.training.randomness import GaussianNoise

RESULT = RESULTS / "peers" / "speed.json"
PROCESSES, ROUNDS = 3, 7


def private_step(row: Row, setting: Setting) -> Step:
    """Return the private step of dpsweep."""
    model, adam, inputs, labels = setting.prepared(row)
    optimizer = PrivateOptimizer(
        adam,
        make_engine("auto", model),
        FlatClipping(1.0),
        noise_multiplier=1.0,
        expected_batch_size=len(labels),
        noise=GaussianNoise("benchmark", secret=b""),
    )
    mask = torch.ones_like(labels, dtype=torch.bool)
    return lambda: optimizer.step([(inputs, labels, mask)])


ALL = CONTENDERS | {
    "dpsweep": private_step,
    "Opacus, functorch": partial(opacus, "functorch"),
}


class SmallNetwork(Row):
    """Two convolutions with group normalisation, and a head."""

    def model(self) -> nn.Module:
        """Build the network with random weights."""
        with seeded(0):
            return nn.Sequential(
                *(nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2)),
                *(nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.ReLU(), nn.MaxPool2d(2)),
                *(nn.Flatten(), nn.Linear(32 * 7 * 7, 100)),
            )

    def inputs(self, count: int) -> Tensor:
        """Return made-up images."""
        return torch.randn(count, 1, 28, 28, generator=torch.Generator().manual_seed(1))


ROW = SmallNetwork("network with group normalisation, all parameters", "small", "all", 64, 64)


def measure() -> dict[str, float]:
    """Return the seconds of a step of each contender; they take turns."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    steps = {name: make(ROW, CPU) for name, make in ALL.items()}
    for step in steps.values():
        warm_up(step, CPU.device)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, step in steps.items():
            times[name].append(timed(step, CPU.device))
    return {name: statistics.median(each) for name, each in times.items()}


def main() -> None:
    """Measure in three processes, one after the other."""
    command_line(__doc__).parse_args()
    described = environment("opacus", "torch", "dpsweep", device="CPU, one thread")
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(1, maxtasksperchild=1) as pool:
        found = [pool.apply(measure) for _ in range(PROCESSES)]
    medians = {name: {"seconds": statistics.median(each[name] for each in found)} for name in ALL}
    row = {"title": ROW.title, "batch": ROW.cpu_batch, "contenders": medians}
    write_json(RESULT, {"environment": described, "rows": [row]})


if __name__ == "__main__":
    main()
