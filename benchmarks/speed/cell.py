"""Measure how much of a cell's wall time is optimizer steps and evaluation.

    python -m benchmarks.speed.cell    # a cell of the demo's size

A cell is one process, as in the workflow: start-up, loading, training, evaluation and writing are
all in its own timing breakdown , which is what is printed. Weights and data are
random: no accuracy comes out of it.

Results go to benchmarks/results/cell_cpu.json. A cell of SUN397's size on a GPU is a piece of
`python -m benchmarks.gpu`.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from benchmarks.common import RESULTS, command_line, environment
from benchmarks.speed.synthetic import PROBLEM, small_study, stage, write_images
from dpsweep.base.files import read_json, write_json

SIZE = {"train": 1347, "test": 450, "pixels": 8, "classes": 10, "batch": 256, "epochs": 8}


def study(size: dict[str, int]) -> dict[str, Any]:
    """A study of one cell: two learning rates, one seed."""
    small = {"img_size": size["pixels"], "patch_size": 4, "in_chans": 3, "embed_dim": 64}
    return small_study(
        size,
        small | {"depth": 2, "num_heads": 4},
        {"kind": "film"},
        epochs=[size["epochs"]],
        batch_size=[size["batch"]],
        learning_rate=[0.001, 0.01],
    )


def time_cell() -> dict[str, Any]:
    """Prepare a synthetic study, train its cell, return the timing breakdown."""
    size = SIZE
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results"
        content = study(size) | {"results": str(results)}
        file = Path(folder) / "study.yaml"
        file.write_text(yaml.safe_dump(content))
        write_images(results / "data" / "synthetic", size)

        stage(file, "prepare-backbone", "vit")
        stage(file, "calibrate", "synthetic", "8", str(size["epochs"]), str(size["batch"]))
        cell = f"eps8_epochs{size['epochs']}_B{size['batch']}_C1"
        started = time.monotonic()
        stage(file, "train", PROBLEM, cell)
        wall = time.monotonic() - started
        timing = read_json(next((results / "logs" / "cells" / PROBLEM).glob(f"{cell}-*.json")))
    seconds = timing["seconds"]
    useful = seconds["training"] + seconds["evaluation"]
    steps = 2 * round(size["epochs"] * size["train"] / size["batch"])
    return {
        "compiled": False,
        "size": size,
        "timing": timing,
        "process_seconds": round(wall, 2),
        "share_of_steps_and_evaluation": round(useful / wall, 4),
        "examples_per_second": round(2 * size["epochs"] * size["train"] / seconds["training"]),
        "steps": steps,
        # Interpreter, imports, data, network, optimizer, writing results.
        "other_seconds": round(wall - useful, 2),
    }


def main() -> None:
    """Measure and write the result."""
    command_line(__doc__).parse_args()
    result = {
        "environment": environment("torch", "timm", device="CPU, one thread"),
        "cells": [time_cell()],
    }
    write_json(RESULTS / "cell_cpu.json", result)
    print((RESULTS / "cell_cpu.json").read_text())


if __name__ == "__main__":
    main()
