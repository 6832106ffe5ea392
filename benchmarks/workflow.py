"""Measure what Snakemake needs before anything runs, on the paper's study.

    python benchmarks/workflow.py

Every call is a process of its own; its processor time and its peak memory are measured. Two
states of the study: nothing there (cold), and every output there (complete: empty files, touched
by Snakemake itself, so that it has its records of all jobs). A scratch folder holds them.

The result goes to benchmarks/results/workflow.json.
"""

import argparse
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dpsweep.files import write_json

REPOSITORY = Path(__file__).parents[1]
RESULT = REPOSITORY / "benchmarks" / "results" / "workflow.json"
FIGURE = "results/figures/fig1_accuracy_heatmaps.pdf"


def snakemake(folder: Path, *arguments: str) -> list[str]:
    """The call of Snakemake on the paper's study, with outputs under ``folder``."""
    return [
        *(sys.executable, "-m", "snakemake", "--snakefile", str(REPOSITORY / "Snakefile")),
        *("--directory", str(folder), "--workflow-profile", "none", "--cores", "2"),
        *("--scheduler", "greedy", *arguments),
    ]


def measure(command: list[str]) -> dict[str, float]:
    """Run a command; return its processor seconds, wall seconds and peak megabytes."""
    started, before = time.monotonic(), _processor_seconds()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        peak = 0.0
        while process.poll() is None:
            try:
                status = Path(f"/proc/{process.pid}/status").read_text()
                peak = max(peak, int(status.split("VmHWM:")[1].split()[0]) / 1e3)
            except (FileNotFoundError, IndexError):
                pass  # it has just ended
            time.sleep(0.02)
        output.seek(0)
        assert process.returncode == 0, output.read()
    return {
        "cpu_seconds": round(_processor_seconds() - before, 2),
        "wall_seconds": round(time.monotonic() - started, 2),
        "megabytes": round(peak, 1),
    }


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def complete(folder: Path) -> int:
    """Make every output of the study, empty, and have Snakemake record them; return how many."""
    listed = subprocess.run(
        snakemake(folder, "--summary", "all"), capture_output=True, text=True, check=True
    ).stdout.splitlines()
    files = [folder / line.split("\t")[0] for line in listed[1:]]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    subprocess.run(snakemake(folder, "--touch", "all"), capture_output=True, check=True)
    return len(files)


def main() -> None:
    """Measure and write the result."""
    folder = Path(tempfile.mkdtemp(prefix="workflow-benchmark-"))
    shutil.copy(REPOSITORY / "config.yaml", folder)
    check = [
        sys.executable,
        "-m",
        "dpsweep.cli",
        "check",
        "--seconds",
        "0",
        "--study",
        str(folder / "config.yaml"),
    ]
    calls = {
        "the whole study, -n all": snakemake(folder, "-n", "--quiet", "rules", "--", "all"),
        "one figure, -n": snakemake(folder, "-n", "--quiet", "rules", "--", FIGURE),
    }
    found: dict[str, Any] = {"validate the study (dpsweep check --seconds 0)": measure(check)}
    for name, command in calls.items():
        found[f"{name}, nothing there"] = measure(command)
        print(name, found[f"{name}, nothing there"], flush=True)
    outputs = complete(folder)
    for name, command in calls.items():
        found[f"{name}, everything there"] = measure(command)
        print(name, found[f"{name}, everything there"], flush=True)
    shutil.rmtree(folder)
    packages = ("snakemake", "pydantic")
    environment = {
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in packages},
    }
    write_json(RESULT, {"environment": environment, "outputs": outputs, "calls": found})


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
