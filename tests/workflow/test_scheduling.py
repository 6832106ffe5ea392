"""What the workflow changes in Snakemake has the effect that it is for."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SNAKEFILE = """
include: "{rules}"


rule all:
    input:
        [f"{{number}}.txt" for number in range(5)],


rule touch:
    output:
        "{{number}}.txt",
    shell:
        "touch {{output}}"
"""
COUNTING = """
import sys
import threading

from snakemake.cli import main

started = []
timer = threading.Timer.start
threading.Timer.start = lambda self: (started.append(1), timer(self))
try:
    main(["--cores", "1"])
except SystemExit as end:
    print("exit status", end.code or 0, "timers", len(started))
"""


def run(folder: Path, rules: str) -> str:
    (folder / "Snakefile").write_text(SNAKEFILE.format(rules=rules))
    return subprocess.run(
        [sys.executable, "-c", COUNTING], cwd=folder, capture_output=True, text=True, check=True
    ).stdout


def test_no_job_starts_a_timer(tmp_path: Path) -> None:
    """With a timer for each job, thousands of short jobs leave the scheduler no time."""
    rules = ROOT / "workflow" / "rules" / "snakemake.smk"
    assert run(tmp_path, str(rules)).splitlines()[-1] == "exit status 0 timers 0"
    assert len(list(tmp_path.glob("*.txt"))) == 5


def test_snakemake_alone_starts_them(tmp_path: Path) -> None:
    """Where this fails, the change is not needed any more."""
    (tmp_path / "none.smk").touch()
    *_, timers = run(tmp_path, "none.smk").splitlines()[-1].split()
    assert int(timers) > 0
