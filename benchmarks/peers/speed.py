"""Time and memory of a step beside other libraries: a small network, ViT-Tiny and a small BERT.

    python -m benchmarks.peers.speed --jax build/peers/bin/python      # 20 minutes on one core
    python -m benchmarks.peers.speed --only "ViT-Tiny, FiLM"           # this row again

Inputs are made up. The contenders take turns in each of three processes; a number is the median of the three
medians, and their spread is kept: measure a row again if it is large. JAX-Privacy, which compares on the
small network only, has a process of its own beside each of them. Seconds are processor time, which other
load hardly changes. Memory is what two steps need beyond the model.

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

from benchmarks.common import RESULTS, begin_rows, command_line, environment, put_row
from benchmarks.speed.step_cost import CPU, measure_memory, timed, warm_up
from benchmarks.speed.steps import CLASSES, CONTENDERS, Row, opacus
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


TITLES = [row.title for row in ROWS]


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


def measure_jax(python: Path, row: Row) -> dict[str, dict[str, float]]:
    """Return seconds and megabytes of steps of JAX."""
    command = [python, Path(__file__).with_name("jax_speed.py"), str(row.cpu_batch), str(CLASSES)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout))


def measure_row(row: Row, python: Path | None) -> dict[str, Any]:
    """Return seconds, their spread and megabytes of each contender; JAX's if its Python is given."""
    spawn = multiprocessing.get_context("spawn")
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ALL}
    for _ in range(PROCESSES):
        with spawn.Pool(1, maxtasksperchild=1) as pool:
            seconds = pool.apply(measure, (row,))
        for name, each in seconds.items():
            found[name].append({"seconds": each})
        for name, one in measure_jax(python, row).items() if python else ():
            found.setdefault(name, []).append(one)
    contenders = {}
    for name, runs in found.items():
        median = {key: statistics.median(one[key] for one in runs) for key in runs[0]}
        seconds = [one["seconds"] for one in runs]
        spread = (max(seconds) - min(seconds)) / median["seconds"]
        contenders[name] = median | {"spread": round(spread, 3)}
    for name, make in ALL.items():
        with spawn.Pool(1, maxtasksperchild=1) as pool:
            contenders[name]["megabytes"] = pool.apply(measure_memory, ((row, make),))
    return {"title": row.title, "batch": row.cpu_batch, "contenders": contenders}


def main() -> None:
    """Measure row by row, and write the result after each."""
    parser = command_line(__doc__)
    parser.add_argument("--jax", type=Path, help="Python of an environment with jax-privacy")
    parser.add_argument("--only", choices=TITLES, help="measure one row again")
    arguments = parser.parse_args()
    described = environment("opacus", "torch", "timm", "peft", "dpsweep", device="CPU, one thread")
    if arguments.jax:
        code = "import importlib.metadata; print(importlib.metadata.version('jax-privacy'))"
        command = [arguments.jax, "-c", code]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        described["versions"]["jax-privacy"] = done.stdout.strip()
    result = begin_rows(RESULT, described, again=bool(arguments.only))
    for row in ROWS:
        if arguments.only in (None, row.title):
            measured = measure_row(row, arguments.jax if row is SMALL else None)
            print(measured, flush=True)
            put_row(RESULT, result, measured, TITLES)


if __name__ == "__main__":
    main()
