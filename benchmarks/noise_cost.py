"""Measure what noise with tails adds to a step: float64 from Philox against float32 `torch.randn`.

    python -m benchmarks.noise_cost cpu     # five minutes on one core
    python -m benchmarks.noise_cost gpu

A step is measured on one physical batch, and scaled to the batch size of its case: gradients are
paid once per physical batch, noise once per step. Both kinds of noise are drawn in one process, and
seconds are processor time of one thread on the CPU. Results: benchmarks/results/noise_cost_<device>.json.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from benchmarks.step_cost import RESULTS, ROWS, Setting, dpsweep, make_model
from dpsweep.files import write_json
from dpsweep.models.build import trainable_parameters
from dpsweep.training.noise import GaussianNoise

ROUNDS = 5


@dataclass(frozen=True)
class Case:
    """A row of step_cost.py, and the batch size of its step."""

    title: str
    batch_size: int


CASES = [Case("ViT-Tiny, FiLM", 32), Case("ViT-Base, all parameters", 256)]


def seconds(run: Callable[[], object], device: torch.device) -> float:
    """Return how long a call takes."""
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    if device.type == "cuda":
        torch.cuda.synchronize()
    started = clock()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return clock() - started


def time_noise(case: Case, device: torch.device) -> dict[str, float | str]:
    """Return the seconds of a step and of both kinds of noise, and what the new one adds."""
    row = next(row for row in ROWS if row.title == case.title)
    size = sum(each.numel() for each in trainable_parameters(make_model(row)).values())
    physical_batch = row.cpu_batch if device.type == "cpu" else row.gpu_batch
    step = dpsweep(row, Setting(device, None, False))
    wide = torch.zeros(size, dtype=torch.float64, device=device)
    narrow = torch.zeros(size, dtype=torch.float32, device=device)
    noise = GaussianNoise("benchmark")
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
    found = {name: [seconds(run, device) for _ in range(ROUNDS)] for name, run in runs.items()}
    median = {name: statistics.median(times) for name, times in found.items()}
    # The step above holds its noise once, whatever the number of physical batches.
    gradients = (median["step"] - median["new"]) * case.batch_size / physical_batch
    return {
        "case": f"{case.title}, B = {case.batch_size}",
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("device", choices=["cpu", "gpu"])
    kind = parser.parse_args().device
    device = torch.device("cpu" if kind == "cpu" else "cuda")
    torch.set_num_threads(1)
    name = "one CPU thread" if kind == "cpu" else torch.cuda.get_device_name()
    rows = [time_noise(case, device) for case in CASES]
    for row in rows:
        print(row)
    write_json(RESULTS / f"noise_cost_{kind}.json", {"device": name, "rows": rows})


if __name__ == "__main__":
    main()
