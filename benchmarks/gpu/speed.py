"""Cost of steps, noise and a cell on a GPU."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import REPOSITORY
from benchmarks.gpu.kit import Kit
from benchmarks.speed import noise_cost as noise_of_a_step
from benchmarks.speed import step_cost
from benchmarks.speed.step_contenders import REFERENCE
from benchmarks.speed.step_rows import Row
from benchmarks.speed.synthetic import film_trial, write_images, write_vit
from dpsweep.data.prepared import PreparedDataset
from dpsweep.gradients.precision import resolve_precision
from dpsweep.models.backbone import PreparedBackbone
from dpsweep.study.config import Film
from dpsweep.training.context import TrialContext
from dpsweep.training.optimizer import PrivateOptimizer
from dpsweep.training.trial import train_trial

SUN397 = {
    "train": 87_002,
    "test": 21_750,
    "pixels": 224,
    "classes": 397,
    "batch": 4096,
    "epochs": 8,
}
REHEARSAL = {"train": 300, "test": 100, "pixels": 32, "classes": 10, "batch": 64, "epochs": 1}
LEARNING_RATES = (0.001, 0.01)


def steps(kit: Kit, row: Row, compiled: bool = False) -> dict[str, Any]:
    """A network's step in every precision, with and without privacy.

    Rows whose step without privacy fails have nothing to be compared with.
    """
    rounds = 2 if kit.rehearse else 5
    measured = step_cost.measure_row(row, kit.device, rounds, compiled)
    rows = [each for each in measured if "seconds" in each["contenders"][REFERENCE]]
    return {"rows": rows, "not_compared": [each for each in measured if each not in rows]}


def noise_cost(kit: Kit) -> dict[str, Any]:
    """Cost of noise with full tails in a step."""
    cases = noise_of_a_step.REHEARSAL if kit.rehearse else noise_of_a_step.CASES
    return {"rows": [noise_of_a_step.time_noise(case, kit.device) for case in cases]}


def cell(kit: Kit, compiled: bool = False) -> dict[str, Any]:
    """A process that trains two trials on data of SUN397's size, and what its time goes into.

    It does what a job of the workflow does, but for the two tables that a cell leaves.
    """
    size = REHEARSAL if kit.rehearse else SUN397
    folder = kit.work / "cell"
    if not (folder / "data" / "metadata.json").exists():
        smaller = {"depth": 1} if kit.rehearse else {}
        write_vit(folder / "backbone", {"img_size": size["pixels"], **smaller})
        write_images(folder / "data", size)
    started = time.time()
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.gpu.speed", str(folder), kit.device.type),
            *(json.dumps(size), str(started), str(int(compiled and not kit.rehearse))),
        ],
        cwd=REPOSITORY,
        # What the folder of inputs brings is found where this process has found it.
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
        "compiled": compiled,
        "size": size,
        "process_seconds": round(wall, 2),
        "share_of_steps_and_evaluation": round(useful / wall, 4),
        "other_seconds": round(wall - useful, 2),
        **found,
    }


def _train_cell(
    folder: Path, kind: str, size: dict[str, int], started: float, compiled: bool
) -> None:
    """The process of a cell: print what it has measured."""
    device = torch.device(kind)
    torch.set_num_threads(1)
    first: list[float] = []
    original = PrivateOptimizer.step

    def timed(optimizer: PrivateOptimizer, *arguments: Any) -> Any:
        found = original(optimizer, *arguments)
        if not first:
            if device.type == "cuda":
                torch.cuda.synchronize()
                # Looking for the largest physical batch has filled the memory.
                torch.cuda.reset_peak_memory_stats()
            first.append(time.time() - started)
        return found

    PrivateOptimizer.step = timed  # type: ignore[method-assign]
    data = PreparedDataset.open(folder / "data")
    backbone = PreparedBackbone.open(folder / "backbone")
    context = TrialContext(data, backbone, Film(kind="film"), device=device)
    epochs = size["epochs"]
    records = []
    for rate in LEARNING_RATES:
        spec = film_trial(
            data,
            backbone,
            device,
            epsilon=8.0,
            delta=1e-5,
            noise_multiplier=1.0,
            train_size=size["train"],
            batch_size=size["batch"],
            epochs=epochs,
            steps=max(1, round(epochs * size["train"] / size["batch"])),
            learning_rate=rate,
            physical_batch="auto",
            precision=resolve_precision("auto", "auto", device),
            compile=compiled,
        )
        stored, _ = train_trial(spec, context, folder / "checkpoint", 1e9)
        records.append(stored.record)
    training = sum(record["wall_seconds"] for record in records)
    found = {
        "training_seconds": round(training, 2),
        "evaluation_seconds": round(sum(record["evaluation_seconds"] for record in records), 2),
        "seconds_to_first_step": round(first[0], 2),
        "examples_per_second": round(len(records) * epochs * size["train"] / training),
        "examples_per_second_of_the_last": round(records[-1]["examples_per_second"]),
        "physical_batch": records[-1]["physical_batch"],
        "precision": resolve_precision("auto", "auto", device),
    }
    if device.type == "cuda":
        found["gigabytes"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    place, device_kind, sizes, begun, compile_it = sys.argv[1:]
    _train_cell(Path(place), device_kind, json.loads(sizes), float(begun), bool(int(compile_it)))
