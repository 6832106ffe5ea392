"""Measure the steps of a trial that several processes share: ViT-Tiny with FiLM at B = 256.

    python -m benchmarks.speed.processes              # one and two processes, one thread each: 5 minutes
    python -m benchmarks.speed.processes --batch 32

The numbers of processes take turns. A row has the median seconds of a step, the ratio to one process, and the
processor seconds of the process that used most, which other load hardly changes. Beyond a half of those of
one process is the extra cost: sums, messages, and noise and optimizer in every process.

On a machine with several GPUs, `python -m benchmarks.gpu` measures 1, 2 and 4 of them.
"""

import json
import statistics
import time
from functools import partial
from typing import Any

import torch

from benchmarks.common import command_line, environment
from benchmarks.speed.steps import ROWS, Row, Setting
from dpsweep.gradients import make_engine
from dpsweep.models.build import head_parameter_names
from dpsweep.study.clipping import FlatClipping
from dpsweep.training import processes
from dpsweep.training.optimizer import MicroBatch, PrivateOptimizer
from dpsweep.training.physical import MicroBatches, part_size
from dpsweep.training.processes import launch
from dpsweep.training.randomness import GaussianNoise


def measure(row: Row, batch: int, physical: int, steps: int) -> tuple[list[float], list[float]]:
    """Return seconds and processor seconds of each step, the largest of all processes."""
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, adam, _, _ = Setting(device).prepared(row)
    optimizer = PrivateOptimizer(
        adam,
        make_engine("auto", model, head_parameter_names(model)),
        FlatClipping(1.0),
        noise_multiplier=1.0,
        expected_batch_size=batch,
        noise=GaussianNoise("benchmark", secret=b""),
    )
    inputs, labels = row.inputs(batch), torch.arange(batch) % 10

    def load(rows: torch.Tensor) -> MicroBatch:
        mask = torch.ones(len(rows), dtype=torch.bool, device=device)
        return inputs[rows].to(device), labels[rows].to(device), mask

    def step() -> None:
        parts = torch.arange(batch).split(part_size(batch, physical))
        optimizer.step(MicroBatches(parts, load))
        if device.type == "cuda":
            torch.cuda.synchronize()

    step()  # chooses an engine, creates the state of the optimizer
    wall, processor = [], []
    for _ in range(steps):
        processes.largest(0)  # all begin together
        started, used = time.perf_counter(), time.process_time()
        step()
        wall.append(time.perf_counter() - started)
        processor.append(time.process_time() - used)
    microseconds = [processes.largest(round(1e6 * each)) for each in (*wall, *processor)]
    return [each / 1e6 for each in microseconds[:steps]], [
        each / 1e6 for each in microseconds[steps:]
    ]


def measure_counts(
    row: Row, counts: tuple[int, ...], batch: int, physical: int, rounds: int, steps: int
) -> dict[str, Any]:
    """Return the row of each number of processes."""
    found: dict[int, tuple[list[float], list[float]]] = {count: ([], []) for count in counts}
    for _ in range(rounds):
        for count in counts:
            times = launch(count, partial(measure, row), batch, physical, steps)
            for kept, each in zip(found[count], times, strict=True):
                kept.extend(each)
    median = {count: [statistics.median(each) for each in both] for count, both in found.items()}
    return {
        "case": f"{row.title}, B = {batch}",
        "rows": [
            {
                "processes": count,
                "seconds": round(wall, 4),
                "ratio": round(wall / median[counts[0]][0], 3),
                "processor_seconds": round(processor, 4),
                "processor_ratio": round(processor / median[counts[0]][1], 3),
            }
            for count, (wall, processor) in median.items()
        ],
    }


def main() -> None:
    """Measure one and two processes on the CPU, and print the result."""
    parser = command_line(__doc__)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--physical", type=int, default=32, help="examples at once")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3, help="of each round")
    given = parser.parse_args()
    result = {"environment": environment("torch", "timm", device="CPU, one thread a process")}
    result |= measure_counts(
        ROWS[0], (1, 2), given.batch, given.physical, given.rounds, given.steps
    )
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
