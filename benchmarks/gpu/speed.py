"""Cost of steps, noise and a cell on a GPU."""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import REPOSITORY
from benchmarks.gpu.kit import Kit
from benchmarks.gpu.synthetic import film_trial, write_images, write_vit
from benchmarks.speed import processes, step_cost, steps
from benchmarks.speed.steps import REFERENCE, Row, Setting
from dpsweep.data.prepared import PreparedDataset
from dpsweep.gradients.engines import resolve_precision
from dpsweep.models.backbone import PreparedBackbone
from dpsweep.models.build import trainable_parameters
from dpsweep.study.networks import Film
from dpsweep.training.context import TrialContext
from dpsweep.training.optimizer import PrivateOptimizer
from dpsweep.training.randomness import GaussianNoise
from dpsweep.training.trial import train_trial

SUN397 = {
    **{"train": 87_002, "test": 21_750, "pixels": 224, "classes": 397},
    **{"batch": 4096, "epochs": 8},
}
REHEARSAL = {"train": 300, "test": 100, "pixels": 32, "classes": 10, "batch": 64, "epochs": 1}
LEARNING_RATES = (0.001, 0.01)
NOISE_CASES = {"ViT-Tiny, FiLM": 512, "ViT-Base, all parameters": 256}
"""Titles of rows, and the batch sizes of their steps (at least the physical batch)."""


def measure_step(kit: Kit, row: Row, compiled: bool = False) -> dict[str, Any]:
    """Measure a network's step in every precision, with and without privacy.

    Rows are not compared if their step without privacy fails.
    """
    rounds = 2 if kit.rehearse else 5
    measured = step_cost.measure_row(row, kit.device, rounds, compiled)
    rows = [each for each in measured if "seconds" in each["contenders"][REFERENCE]]
    return {"rows": rows, "not_compared": [each for each in measured if each not in rows]}


def measure_noise(kit: Kit) -> dict[str, Any]:
    """Measure the cost of noise with tails in a step: float64 from Philox against float32 `torch.randn`."""
    cases = {steps.REHEARSAL[0].title: 32} if kit.rehearse else NOISE_CASES
    known = {row.title: row for row in (*steps.ROWS, *steps.REHEARSAL)}
    return {
        "rows": [_measure_noise_of(known[title], size, kit.device) for title, size in cases.items()]
    }


def _measure_noise_of(row: Row, batch_size: int, device: torch.device) -> dict[str, float | str]:
    """Measure the seconds of a step, scaled to its batch size, and of both kinds of noise."""
    size = sum(each.numel() for each in trainable_parameters(row.model()).values())
    wide = torch.zeros(size, dtype=torch.float64, device=device)
    narrow = torch.zeros(size, dtype=torch.float32, device=device)
    noise = GaussianNoise("benchmark", secret=b"")
    generator = torch.Generator(device).manual_seed(1)
    runs: dict[str, steps.Step] = {
        "step": steps.dpsweep(row, Setting(device)),
        "new": lambda: noise.add_to(wide, 0, 1.0),
        "old": lambda: narrow.add_(torch.randn(size, generator=generator, device=device)),
    }
    median = {}
    for name, run in runs.items():
        run()
        median[name] = statistics.median(step_cost.timed(run, device) for _ in range(5))
    # Gradients are computed once per physical batch, noise is drawn once per step.
    batch_size = max(batch_size, row.batch_on(device))
    gradients = (median["step"] - median["new"]) * batch_size / row.batch_on(device)
    added = (median["new"] - median["old"]) / (gradients + median["old"])
    return {
        "case": f"{row.title}, B = {batch_size}",
        "parameters": size,
        "step_seconds": round(gradients + median["new"], 4),
        "noise_seconds": round(median["new"], 5),
        "float32_noise_seconds": round(median["old"], 5),
        "added_percent": round(100 * added, 3),
    }


def measure_processes(kit: Kit) -> dict[str, Any]:
    """Measure a step that 1, 2 and 4 GPUs share, as many as there are; in a rehearsal one process."""
    row, batch = (steps.REHEARSAL[0], 4) if kit.rehearse else (steps.ROWS[0], 4096)
    most = 1 if kit.rehearse else torch.cuda.device_count()
    counts = tuple(count for count in (1, 2, 4) if count <= most)
    rounds = 1 if kit.rehearse else 3
    return processes.measure_counts(row, counts, batch, row.batch_on(kit.device), rounds, steps=2)


def measure_cell(kit: Kit, compiled: bool = False) -> dict[str, Any]:
    """Measure the parts of the time of a process that trains two trials on data of SUN397's size.

    It does the work of a job of the workflow, except for writing the two tables of a cell.
    """
    size, folder = REHEARSAL if kit.rehearse else SUN397, kit.work / "cell"
    if not (folder / "data" / "metadata.json").exists():
        smaller = {"depth": 1} if kit.rehearse else {}
        write_vit(folder / "backbone", {"img_size": size["pixels"], **smaller})
        write_images(folder / "data", size)
    started = time.time()
    asked = {"folder": str(folder), "kind": kit.device.type, "size": size, "started": started}
    asked["compiled"] = compiled and not kit.rehearse
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu.speed", json.dumps(asked)],
        cwd=REPOSITORY,
        # The child must find the packages of the folder of inputs.
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    wall = time.time() - started
    if ended.returncode:
        raise RuntimeError(f"exit status {ended.returncode}: {ended.stderr[-5000:]}")
    found = json.loads(ended.stdout.splitlines()[-1])
    useful = found["training_seconds"] + found["evaluation_seconds"]
    return {
        **{"compiled": compiled, "size": size, "process_seconds": round(wall, 2)},
        "share_of_steps_and_evaluation": round(useful / wall, 4),
        "other_seconds": round(wall - useful, 2),
        **found,
    }


def _train_cell(
    folder: str, kind: str, size: dict[str, int], started: float, compiled: bool
) -> dict[str, Any]:
    """Train in the process of a cell, and return its measurements."""
    device = torch.device(kind)
    torch.set_num_threads(1)
    first: list[float] = []
    original = PrivateOptimizer.step

    def timed(optimizer: PrivateOptimizer, *arguments: Any) -> Any:
        found = original(optimizer, *arguments)
        if not first:
            if device.type == "cuda":
                torch.cuda.synchronize()
                # The search for the largest physical batch has filled the memory.
                torch.cuda.reset_peak_memory_stats()
            first.append(time.time() - started)
        return found

    PrivateOptimizer.step = timed  # type: ignore[method-assign]
    data = PreparedDataset.open(Path(folder, "data"))
    backbone = PreparedBackbone.open(Path(folder, "backbone"))
    context = TrialContext(data, backbone, Film(kind="film"), device=device)
    settings = {
        **{"batch_size": size["batch"], "epochs": size["epochs"], "physical_batch": "auto"},
        **{"precision": resolve_precision("auto", "auto", device), "compile": compiled},
    }
    records = []
    for rate in LEARNING_RATES:
        spec = film_trial(data, backbone, device, learning_rate=rate, **settings)
        records.append(train_trial(spec, context, Path(folder, "checkpoint"), 1e9)[0].record)
    training, evaluation = (
        sum(record[f"{part}_seconds"] for record in records) for part in ("wall", "evaluation")
    )
    found = {
        "training_seconds": round(training, 2),
        "evaluation_seconds": round(evaluation, 2),
        "seconds_to_first_step": round(first[0], 2),
        "examples_per_second": round(len(records) * size["epochs"] * size["train"] / training),
        "examples_per_second_of_the_last": round(records[-1]["examples_per_second"]),
        "physical_batch": records[-1]["physical_batch"],
        "precision": settings["precision"],
    }
    if device.type == "cuda":
        found["gigabytes"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
    return found


if __name__ == "__main__":
    print(json.dumps(_train_cell(**json.loads(sys.argv[1]))), flush=True)
