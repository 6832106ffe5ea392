"""Measure the analysis of a complete study: every problem's table, every figure and table, the report.

    python -m benchmarks.analysis make FOLDER      # synthetic results of the paper's study (2 GB)
    python -m benchmarks.analysis measure FOLDER   # draw all of it, two jobs at a time

The result goes to benchmarks/results/analysis.json. The synthetic study has the cells, sizes and
columns of a real one; its numbers are made up so that every figure has something to show: easy
problems want a small C and a large B, hard ones a large C and a small B.
"""

import argparse
import math
import multiprocessing
import resource
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tests.synthetic import write_cells, write_dataset, write_gradient_norms

from benchmarks.environment import environment
from dpsweep.analysis.frames import load_trials, write_problem
from dpsweep.choice import choose
from dpsweep.figures import draw
from dpsweep.files import write_json
from dpsweep.report import write as write_report
from dpsweep.study import Cell, Study, load_study
from dpsweep.study.cells import optimizer_steps
from dpsweep.study.paths import Paths
from dpsweep.study.targets import NormTrace
from dpsweep.study.trials import trials_per_cell
from dpsweep.tables import write

REPOSITORY = Path(__file__).parents[1]
STUDY_FILE = REPOSITORY / "config.yaml"
RESULT = REPOSITORY / "benchmarks" / "results" / "analysis.json"
JOBS = 2
# With these, the study has more than 100,000 trials.
MORE_SEEDS = 7

Task = tuple[Literal["problem", "figure", "table", "report"], str]


# -- a complete study ------------------------------------------------------------------------


def larger_study() -> Study:
    """The paper's study with more seeds."""
    study = load_study(STUDY_FILE)
    sweeps = {
        name: sweep.model_copy(update={"seeds": sweep.seeds + MORE_SEEDS})
        for name, sweep in study.sweeps.items()
    }
    return study.model_copy(update={"sweeps": sweeps})


def random(*parts: object) -> np.random.Generator:
    """A generator of its own for every setting, the same in every process."""
    return np.random.default_rng(zlib.crc32(repr(parts).encode()))


def difficulty(study: Study, cell: Cell) -> float:
    """From 0 (a strong backbone and a loose budget) to about 2."""
    strong = {"vit-base": 0.0, "resnet50": 0.2, "vit-tiny": 0.5, "distilbert": 0.3, "wrn-16-4": 1.0}
    return strong[study.problems[cell.problem].backbone] + math.log2(8 / cell.epsilon) / 4


class Outcome:
    """What a trial of the synthetic study comes to."""

    def __init__(self, study: Study) -> None:
        self.study = study

    def __call__(self, cell: Cell, rate: float, seed: int) -> dict[str, Any]:
        """Made up from how far the trial is from the best setting of its problem."""
        sweep = self.study.sweeps[self.study.sweep_of(cell)]
        dataset = self.study.datasets[sweep.dataset]
        size, train_size = self.study.batch_size(cell), dataset.train_size
        steps = optimizer_steps(train_size, size, cell.epochs, "round")
        hard = difficulty(self.study, cell)
        bounds = [bound for bound in sweep.clipping_bounds if not isinstance(bound, str)] or [1.0]
        best_bound = bounds[0] * (bounds[-1] / bounds[0]) ** min(1.0, 0.2 + 0.5 * hard)
        bound = (
            0.5 * best_bound if isinstance(cell.clipping_bound, str) else float(cell.clipping_bound)
        )
        span = math.log(bounds[-1] / bounds[0]) or 1.0
        far = math.log(bound / best_bound) / span
        best_size = train_size * min(1.0, cell.epochs / 32) / 4**hard
        rates = sweep.learning_rates
        middle = math.sqrt(rates[0] * rates[-1])
        accuracy = (
            0.9
            - 0.22 * hard
            - 0.25 * far**2
            - 0.004 * math.log2(size / best_size) ** 2
            - 0.03 * math.log(rate / middle) ** 2
            + 0.1 * math.log2(cell.epochs) / 5
            + random("trial", cell, rate, seed).normal(scale=0.004)
        )
        accuracy = float(np.clip(accuracy, 1 / dataset.classes, 0.99))
        classes = random("classes", sweep.dataset).normal(scale=0.12, size=dataset.classes)
        wobble = random("class", cell, seed).normal(scale=0.02, size=dataset.classes)
        per_class = np.clip(accuracy + classes * (1 + far) + wobble, 0, 1)
        rate_of_sampling = size / train_size
        noise = 3 * rate_of_sampling * math.sqrt(steps) / cell.epsilon + 0.5
        norms = 3 + hard + 2 * np.exp(-np.arange(steps) / (0.2 * steps))
        return {
            "macro_accuracy": accuracy,
            "per_class_accuracy": list(per_class),
            "noise_multiplier": noise,
            "step_norms": norms + random("steps", cell).normal(scale=0.2, size=steps),
        }


def make(folder: Path) -> None:
    """Write every result of the larger study that its figures and tables read."""
    study, paths = larger_study(), Paths(folder)
    outcome = Outcome(study)
    traced = [
        selection
        for figure in study.figures.values()
        if isinstance(figure, NormTrace)
        for selection in figure.selections()
    ]
    with_steps = {cell for selection in traced for cell in study.cells(selection)}
    for name, dataset in study.datasets.items():
        counts = random("counts", name).pareto(3, size=dataset.classes) + 1
        counts = np.maximum(1, np.floor(counts / counts.sum() * dataset.train_size)).astype(int)
        counts[0] += dataset.train_size - counts.sum()
        write_dataset(
            paths, name, counts.tolist(), title=dataset.title, test_size=dataset.test_size
        )
    for name in study.problems:
        cells = study.problem_cells(name)
        write_cells(study, paths, outcome, [cell for cell in cells if cell not in with_steps])
        write_cells(study, paths, outcome, set(cells) & with_steps, steps_too=True)
        print(f"{name}: {len(cells)} cells", flush=True)
    for file, cells in drawn_norms(study, paths):
        best = choose(load_trials(paths, cells), by=["problem"]).iloc[0]
        cell = Cell.parse(best["problem"], best["cell"])
        write_gradient_norms(
            paths, cell, best["learning_rate"], list(norms_of(study, cell, file.stem))
        )


def drawn_norms(study: Study, paths: Paths) -> Iterator[tuple[Path, list[Cell]]]:
    """Every file of gradient norms that a figure reads, with the cells that compete for it."""
    files: dict[Path, dict[Cell, None]] = {}
    for figure in study.figures.values():
        for selection in figure.gradient_norms():
            for cell in study.cells(selection):
                file = paths.gradient_norms(
                    cell.problem, cell.epsilon, cell.epochs, cell.clipping_bound
                )
                files.setdefault(file, {})[cell] = None
    return ((file, list(cells)) for file, cells in files.items())


def norms_of(study: Study, cell: Cell, name: str) -> Iterator[tuple[Any, Any]]:
    """Labels and norms of all training examples after every epoch."""
    dataset = study.datasets[study.problems[cell.problem].dataset]
    typical = 30.0 if study.methods[study.problems[cell.problem].method].kind == "all" else 3.0
    generator = random("norms", cell.problem, name)
    labels = generator.integers(dataset.classes, size=dataset.train_size)
    hard = difficulty(study, cell)
    of_class = np.linspace(-0.5, 0.5, dataset.classes)[labels]
    for epoch in range(cell.epochs):
        centre = math.log(typical) + 0.3 * hard - 0.8 * epoch / cell.epochs / (0.3 + hard)
        yield (
            labels,
            np.exp(centre + of_class + generator.normal(scale=0.5 + 0.1 * epoch, size=len(labels))),
        )


# -- its analysis ----------------------------------------------------------------------------


def run(job: tuple[Path, Task]) -> dict[str, Any]:
    """Do one task in a process of its own; return what it cost."""
    folder, (kind, name) = job
    study, paths = larger_study(), Paths(folder)
    wall, cpu = time.monotonic(), time.process_time()
    match kind:
        case "problem":
            write_problem(study, paths, name)
        case "figure":
            draw(study, paths, name)
        case "table":
            write(study, paths, name)
        case "report":
            write_report(study, Path("config.yaml"), paths)
    return {
        "task": f"{kind} {name}".strip(),
        "cpu_seconds": round(time.process_time() - cpu, 2),
        "wall_seconds": round(time.monotonic() - wall, 2),
        "peak_megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def time_analysis(folder: Path) -> None:
    """Time the analysis of the study in ``folder``, as forks of a process with the libraries."""
    study = larger_study()
    trials = sum(trials_per_cell(study, study.sweep_of(cell)) for cell in study.all_cells())
    stages: list[list[Task]] = [
        [
            *(("problem", name) for name in study.problems),
            *(("table", name) for name in study.tables),
            *(("figure", name) for name in study.figures),
        ],
        [("report", "")],
    ]
    described = environment("matplotlib", "pandas", "pyarrow")
    started = time.monotonic()
    tasks = []
    for stage in stages:
        with multiprocessing.get_context("fork").Pool(JOBS, maxtasksperchild=1) as pool:
            tasks += pool.map(run, [(folder, task) for task in stage], chunksize=1)
    result = {
        "environment": described,
        "cells": len(study.all_cells()),
        "trials": trials,
        "figures": len(study.figures),
        "tables": len(study.tables),
        "jobs_at_a_time": JOBS,
        "wall_seconds": round(time.monotonic() - started, 1),
        "cpu_seconds": round(sum(task["cpu_seconds"] for task in tasks), 1),
        "peak_megabytes_of_a_job": max(task["peak_megabytes"] for task in tasks),
        "tasks": sorted(tasks, key=lambda task: -task["cpu_seconds"]),
    }
    write_json(RESULT, result)
    print(f"{result['wall_seconds']} s, {result['cpu_seconds']} s of processor time")
    for task in result["tasks"][:12]:
        print(task)


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["make", "measure"])
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    {"make": make, "measure": time_analysis}[arguments.what](arguments.folder)


if __name__ == "__main__":
    main()
