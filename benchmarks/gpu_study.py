"""Train a study and record accuracy, speed and settings.

    python benchmarks/gpu_study.py [--study studies/gpu-cifar100.yaml]

Writes ``benchmarks/results/<name of the study>.json``: the best trial of every (problem, epsilon,
epochs) by macro accuracy, and for every cell where its time went.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd

from dpsweep.files import read_json, write_json
from dpsweep.study import Study, load_study
from dpsweep.study.paths import Paths

ROOT = Path(__file__).parents[1]
SETTINGS = ["problem", "dataset", "backbone", "method", "epsilon", "epochs"]
MEASURED = [
    *("batch_size", "clipping_bound", "learning_rate", "steps", "noise_multiplier"),
    *("certified_epsilon", "accuracy", "macro_accuracy", "wall_seconds", "examples_per_second"),
    *("device", "precision"),
]


def main() -> None:
    """Run the study's sweeps, then record them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", type=Path, default=ROOT / "studies" / "gpu-cifar100.yaml")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    arguments = parser.parse_args()
    study_file = arguments.study.resolve()
    study = load_study(study_file)
    os.chdir(ROOT)  # where the study's paths start
    paths = Paths(Path(study.results))
    # One cell at a time: two on one GPU would measure each other.
    subprocess.run(
        [
            *(sys.executable, "-m", "snakemake", "--cores", "1"),
            *("--config", f"study={study_file}"),
            *("--", *(str(paths.problem(name)) for name in study.problems)),
        ],
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
        check=True,
    )
    result = record(study, paths)
    write_json(arguments.results / f"{study_file.stem}.json", result)
    print(pd.DataFrame(result["best"])[[*SETTINGS[4:], *MEASURED[:3], *MEASURED[6:]]].to_string())


def record(study: Study, paths: Paths) -> dict[str, Any]:
    """Return the best trials, the time of every cell and the versions of the libraries."""
    trials = pd.concat(
        [pd.read_parquet(paths.problem(name)) for name in study.problems], ignore_index=True
    )
    best = trials.loc[trials.groupby(SETTINGS)["macro_accuracy"].idxmax()]
    return {
        "title": study.title,
        "versions": json.loads(trials["versions"].iloc[0]),
        "best": best[[*SETTINGS, *MEASURED]].to_dict("records"),
        "cells": {
            f"{cell.problem}/{cell.name}": read_json(
                paths.provenance(f"cells/{cell.problem}/{cell.name}")
            )["timing"]["seconds"]
            for cell in study.all_cells()
        },
    }


if __name__ == "__main__":
    main()
