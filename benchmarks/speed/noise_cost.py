"""Measure what noise with tails adds to a step: float64 from Philox against float32 `torch.randn`.

    python -m benchmarks.speed.noise_cost     # five minutes on one core

A step is measured on one physical batch, and scaled to the batch size of its case: gradients are
paid once per physical batch, noise once per step. Both kinds of noise are drawn in one process, and
seconds are processor time of one thread on the CPU. Results: benchmarks/results/noise_cost_cpu.json. On a
GPU it is a piece of `python -m benchmarks.gpu`.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch

from benchmarks.common import RESULTS, command_line
from benchmarks.speed import step_rows
from benchmarks.speed.step_contenders import Setting, dpsweep
from benchmarks.speed.step_cost import timed
from benchmarks.speed.step_rows import ROWS, make_model
from dpsweep.base.files import write_json
from dpsweep.models.build import trainable_parameters
from dpsweep.training.randomness import GaussianNoise

ROUNDS = 5


@dataclass(frozen=True)
class Case:
    """A row of step_rows.py, and the batch size of its step: at least the physical batch."""

    title: str
    batch_size: int


REHEARSAL = [Case("tiny ViT, FiLM", 32)]
CASES = [Case("ViT-Tiny, FiLM", 32), Case("ViT-Base, all parameters", 256)]


def time_noise(case: Case, device: torch.device) -> dict[str, float | str]:
    """Return the seconds of a step and of both kinds of noise, and what the new one adds."""
    row = next(row for row in [*ROWS, *step_rows.REHEARSAL] if row.title == case.title)
    size = sum(each.numel() for each in trainable_parameters(make_model(row)).values())
    physical_batch = row.cpu_batch if device.type == "cpu" else row.gpu_batch
    step = dpsweep(row, Setting(device, None, False))
    wide = torch.zeros(size, dtype=torch.float64, device=device)
    narrow = torch.zeros(size, dtype=torch.float32, device=device)
    noise = GaussianNoise("benchmark", secret=b"")
    generator = torch.Generator(device).manual_seed(1)

    def old() -> None:
        drawn = torch.randn(size, generator=generator, device=device)
        narrow.add_(drawn, alpha=1.0)

    runs: dict[str, Callable[[], object]] = {
        "step": step,
        "new": lambda: noise.add_to(wide, 0, 1.0),
        "old": old,
    }
    for run in runs.values():
        run()
    found = {name: [timed(run, device) for _ in range(ROUNDS)] for name, run in runs.items()}
    median = {name: statistics.median(times) for name, times in found.items()}
    # The step above holds its noise once, whatever the number of physical batches.
    batch_size = max(case.batch_size, physical_batch)
    gradients = (median["step"] - median["new"]) * batch_size / physical_batch
    return {
        "case": f"{case.title}, B = {batch_size}",
        "parameters": size,
        "step_seconds": round(gradients + median["new"], 4),
        "noise_seconds": round(median["new"], 5),
        "float32_noise_seconds": round(median["old"], 5),
        "added_percent": round(
            100 * (median["new"] - median["old"]) / (gradients + median["old"]), 3
        ),
    }


def main() -> None:
    """Measure all cases."""
    command_line(__doc__).parse_args()
    torch.set_num_threads(1)
    rows = [time_noise(case, torch.device("cpu")) for case in CASES]
    for row in rows:
        print(row)
    write_json(RESULTS / "noise_cost_cpu.json", {"device": "one CPU thread", "rows": rows})


if __name__ == "__main__":
    main()
