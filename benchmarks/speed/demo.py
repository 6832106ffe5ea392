"""Run the demo in a scratch folder and measure it: time, memory, and what a cell needs beside its steps.

    python -m benchmarks.speed.demo    # as long as `make demo`

The result goes to benchmarks/results/demo.json.
"""

import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.common import REPOSITORY, RESULTS, command_line, environment
from dpsweep.base.files import read_json, write_json
from dpsweep.study import load_study

DEMO = REPOSITORY / "studies" / "demo.yaml"
RESULT = RESULTS / "demo.json"
SECONDS_BETWEEN_LOOKS = 2


def run(folder: Path) -> dict[str, float]:
    """Make everything in a folder; return wall seconds and the peak of the memory in use."""
    started = time.monotonic()
    process = psutil.Popen(
        [
            *(sys.executable, "-m", "snakemake", "--snakefile", str(REPOSITORY / "Snakefile")),
            *("--directory", str(folder), "--profile", str(REPOSITORY / "profiles" / "demo")),
            *("--workflow-profile", str(REPOSITORY / "profiles" / "default")),
            *("--config", f"study={DEMO}", "--", "all"),
        ],
        # As `make demo` does: rules call `dpsweep` by name.
        env=os.environ
        | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        },
    )
    peak = 0.0
    while process.poll() is None:
        peak = max(peak, _megabytes(process))
        time.sleep(SECONDS_BETWEEN_LOOKS)
    if process.returncode:
        sys.exit(process.returncode)
    return {
        "wall_seconds": round(time.monotonic() - started, 1),
        "peak_megabytes": round(peak),
    }


def _megabytes(process: psutil.Process) -> float:
    """Memory of a process and its descendants; what several share counts once."""
    total = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        for each in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                total += each.memory_full_info().pss
    return total / 1e6


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """Median and largest."""
    return {
        "median": round(statistics.median(seconds), 2),
        "largest": round(max(seconds), 2),
    }


def main() -> None:
    """Measure and write the result."""
    before = environment("torch", "snakemake")
    study = load_study(DEMO)
    with tempfile.TemporaryDirectory(prefix="demo-benchmark-") as scratch:
        folder = Path(scratch)
        result: dict[str, Any] = {"environment": before} | run(folder)
        cells = folder / study.results / "logs" / "cells"
        timings = [read_json(file) for file in cells.glob("*/*.json")]
    # A cell whose trials another one has trained has no steps of its own.
    seconds = [
        {"training": 0.0, "evaluation": 0.0, "store": 0.0} | timing["seconds"] for timing in timings
    ]
    result |= {
        "figures": len(study.figures),
        "tables": len(study.tables),
        "cells": len(timings),
        "trials": sum(timing["trials"] for timing in timings),
        # Libraries, study, data, networks; writing what the cell leaves.
        "seconds_beside_steps": summary(
            [
                each["total"] - each["training"] - each["evaluation"] - each["store"]
                for each in seconds
            ]
        ),
        "seconds_of_a_cell": summary([each["total"] for each in seconds]),
        "share_of_steps_and_evaluation": round(
            sum(each["training"] + each["evaluation"] for each in seconds)
            / sum(each["total"] for each in seconds),
            3,
        ),
    }
    write_json(RESULT, result)
    print(RESULT.read_text())


if __name__ == "__main__":
    command_line(__doc__).parse_args()
    main()
