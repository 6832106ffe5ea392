"""Measure what Snakemake needs before anything runs, on the paper's study.

    python -m benchmarks.speed.workflow

Every call is a process of its own; its processor time and its peak memory are measured. Two
states of the study: nothing there (cold), and every output there (complete: small files, with
Snakemake's records of all jobs, so that nothing is to be
made again). A scratch folder holds them.

The result goes to benchmarks/results/workflow.json.
"""

import resource
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.common import REPOSITORY, RESULTS, command_line, environment, peak_bytes, snakemake
from dpsweep.base.files import write_json

RESULT = RESULTS / "workflow.json"
FIGURE = "results/figures/fig1_accuracy_heatmaps.pdf"


def time_command(command: list[str], folder: Path = REPOSITORY) -> dict[str, float]:
    """Run a command in a folder; return its processor seconds, wall seconds and peak megabytes."""
    started, before = time.monotonic(), _processor_seconds()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=folder)
        peak = 0.0
        while process.poll() is None:
            with suppress(FileNotFoundError, IndexError):  # it has just ended
                peak = max(peak, peak_bytes(process.pid) / 1e6)
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
    """Make every output of the study and what is recorded of it; return how many files they are."""
    listed = subprocess.run(
        snakemake(folder, "--summary", "all"), capture_output=True, text=True, check=True
    ).stdout.splitlines()
    files = [folder / line.split("\t")[0] for line in listed[1:]]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    subprocess.run(snakemake(folder, "--touch", "all"), capture_output=True, check=True)
    planned = subprocess.run(
        snakemake(folder, "-n", "all"), capture_output=True, text=True, check=True
    )
    assert "Nothing to be done" in planned.stdout + planned.stderr, planned.stdout[-2000:]
    return len(files)


def main() -> None:
    """Measure and write the result."""
    described = environment("snakemake", "pydantic")
    folder = Path(tempfile.mkdtemp(prefix="workflow-benchmark-"))
    shutil.copy(REPOSITORY / "config.yaml", folder)
    shutil.copytree(REPOSITORY / "studies", folder / "studies")
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
        "the whole study, -n all --quiet": snakemake(folder, "-n", "--quiet", "--", "all"),
        "one figure, -n --quiet": snakemake(folder, "-n", "--quiet", "--", FIGURE),
    }
    found: dict[str, Any] = {"validate the study (dpsweep check --seconds 0)": time_command(check)}
    for name, command in calls.items():
        found[f"{name}, nothing there"] = time_command(command)
        print(name, found[f"{name}, nothing there"], flush=True)
    outputs = complete(folder)
    for name, command in calls.items():
        found[f"{name}, everything there"] = time_command(command)
        print(name, found[f"{name}, everything there"], flush=True)
    shutil.rmtree(folder)
    write_json(RESULT, {"environment": described, "outputs": outputs, "calls": found})


if __name__ == "__main__":
    command_line(__doc__).parse_args()
    main()
