"""Measure the analysis of a complete study: every problem's table, every figure and table, the report.

    python -m benchmarks.speed.analysis make FOLDER      # synthetic results of the paper's study (2 GB)
    python -m benchmarks.speed.analysis measure FOLDER   # draw all of it, two jobs at a time

The result goes to benchmarks/results/analysis.json. The synthetic study has the cells, sizes and
columns of a real one; its numbers are made up (`tests.whole_study`).
"""

import multiprocessing
import resource
import time
from pathlib import Path
from typing import Any, Literal

from tests.whole_study import write_results

from benchmarks.common import REPOSITORY, RESULTS, command_line, environment
from dpsweep.analysis.frames import write_problem
from dpsweep.base.files import write_json
from dpsweep.figures import draw
from dpsweep.figures.tables import write
from dpsweep.report import write as write_report
from dpsweep.study import Study, load_study
from dpsweep.study.paths import Paths
from dpsweep.study.trials import trials_per_cell

STUDY_FILE = REPOSITORY / "config.yaml"
RESULT = RESULTS / "analysis.json"
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


def make(folder: Path) -> None:
    """Write every result of the larger study that its figures and tables read."""
    write_results(larger_study(), Paths(folder))


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
    parser = command_line(__doc__)
    parser.add_argument("what", choices=["make", "measure"])
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    {"make": make, "measure": time_analysis}[arguments.what](arguments.folder)


if __name__ == "__main__":
    main()
