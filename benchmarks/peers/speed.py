"""Time and memory of a step beside other libraries: a small network, ViT-Tiny and a small BERT.

    python -m benchmarks.peers.speed --jax build/peers/bin/python      # half an hour on one core

Inputs are made up. The contenders take turns in each of three processes; a number is the median of the three
medians. JAX-Privacy, which compares on the small network only, has a process of its own beside each of them.
Seconds are processor time, which other load hardly changes. Memory is what two steps need beyond the model.

Results go to benchmarks/results/peers/speed.json; `python -m benchmarks.tables` writes docs/peers.md.
"""

import json
import multiprocessing
import statistics
import subprocess
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.common import RESULTS, command_line, environment
from benchmarks.speed.step_cost import CPU, measure_memory, timed, warm_up
from benchmarks.speed.steps import CLASSES, CONTENDERS, Row, opacus
from dpsweep.base.files import write_json
from dpsweep.models.architectures import seeded

RESULT = RESULTS / "peers" / "speed.json"
PROCESSES, ROUNDS = 3, 3
ALL = CONTENDERS | {"Opacus, functorch": partial(opacus, "functorch")}


class SmallNetwork(nn.Sequential):
    """Two convolutions with group normalisation, and a head; `jax_speed.py` has the same network."""

    def __init__(self) -> None:
        super().__init__(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(32 * 7 * 7, CLASSES)),
        )

    def get_classifier(self) -> nn.Module:
        """Return the head."""
        return self[-1]


class SmallRow(Row):
    """The small network on made-up images."""

    def model(self) -> nn.Module:
        """Build the network with random weights."""
        with seeded(0):
            return SmallNetwork()

    def inputs(self, count: int) -> Tensor:
        """Return made-up images."""
        return torch.randn(count, 1, 28, 28, generator=torch.Generator().manual_seed(1))


MINILM = {"dim": 384, "n_layers": 6, "n_heads": 12, "hidden_dim": 1536}
SMALL = SmallRow("small network, all parameters", "small", "all", 64, 64)
ROWS = [
    SMALL,
    Row("ViT-Tiny, FiLM", "vit-tiny", "film", 8, 8),
    Row("ViT-Tiny, LoRA rank 1", "vit-tiny", "lora-r1", 8, 8),
    Row("ViT-Tiny, all parameters", "vit-tiny", "all", 8, 8),
    Row("MiniLM's size, LoRA rank 16", "distilbert", "lora-r16-text", 8, 8, 128, arguments=MINILM),
]


def measure(row: Row) -> dict[str, float]:
    """Return the seconds of a step of each contender; they take turns."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    steps = {name: make(row, CPU) for name, make in ALL.items()}
    for step in steps.values():
        warm_up(step, CPU.device)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, step in steps.items():
            times[name].append(timed(step, CPU.device))
    return {name: statistics.median(each) for name, each in times.items()}


def measure_jax(python: Path, row: Row) -> dict[str, Any]:
    """Return seconds and megabytes of steps of JAX, and the version of JAX-Privacy."""
    command = [python, Path(__file__).with_name("jax_speed.py"), str(row.cpu_batch), str(CLASSES)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout))


def main() -> None:
    """Measure in three processes, one after the other, and write the result after every row."""
    parser = command_line(__doc__)
    parser.add_argument("--jax", type=Path, help="Python of an environment with jax-privacy")
    python = parser.parse_args().jax
    described = environment("opacus", "torch", "timm", "peft", "dpsweep", device="CPU, one thread")
    spawn = multiprocessing.get_context("spawn")
    rows: list[dict[str, Any]] = []
    for row in ROWS:
        found: dict[str, list[dict[str, float]]] = {name: [] for name in ALL}
        for _ in range(PROCESSES):
            with spawn.Pool(1, maxtasksperchild=1) as pool:
                seconds = pool.apply(measure, (row,))
            for name, each in seconds.items():
                found[name].append({"seconds": each})
            if python and row is SMALL:
                of_jax = measure_jax(python, row)
                described["versions"]["jax-privacy"] = of_jax.pop("version")
                for name, each in of_jax.items():
                    found.setdefault(name, []).append(each)
        medians = {
            name: {key: statistics.median(one[key] for one in each) for key in each[0]}
            for name, each in found.items()
        }
        for name, make in ALL.items():
            with spawn.Pool(1, maxtasksperchild=1) as pool:
                medians[name]["megabytes"] = pool.apply(measure_memory, ((row, make),))
        rows.append({"title": row.title, "batch": row.cpu_batch, "contenders": medians})
        print(rows[-1], flush=True)
        write_json(RESULT, {"environment": described, "rows": rows})


if __name__ == "__main__":
    main()
