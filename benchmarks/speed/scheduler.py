"""Measure Snakemake's own processor time and threads while jobs are ready and no slot is free.

    python -m benchmarks.speed.scheduler                        # 300 jobs finish, 100 stay ready
    python -m benchmarks.speed.scheduler --finish 20 --ready 5000 --seconds 60    # nothing ends for a minute

A plain workflow runs twice: with Snakemake's limit of jobs per second, and without it, as dpsweep's workflow.
"""

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.common import command_line, environment

SNAKEFILE = """\
rule all:
    input: expand("finish/{i}", i=range(FINISH)), expand("ready/{i}", i=range(READY)), "hold"
rule finish:
    output: touch("finish/{i}")
    shell: "true"
rule hold:  # has the only slot until the end of the measurement
    output: touch("hold")
    priority: 1
    resources: slot=1
    shell: "sleep infinity"
rule ready:
    output: touch("ready/{i}")
    resources: slot=1
    shell: "true"
"""
UNLIMITED = """\
onstart:
    workflow.scheduler.job_rate_limiter = None
"""


def measure(finish: int, ready: int, seconds: float, limited: bool) -> tuple[float, int]:
    """Return Snakemake's processor time in seconds, while it waits, and its largest number of threads.

    Args:
        finish: jobs that end before the measurement.
        ready: jobs that wait for a slot all the time.
        seconds: of the measurement, after the last job has ended.
        limited: whether Snakemake limits jobs per second, as its command line always does.
    """
    with tempfile.TemporaryDirectory() as folder:
        numbers = f"FINISH, READY = {finish}, {ready}\n"
        Path(folder, "Snakefile").write_text(numbers + ("" if limited else UNLIMITED) + SNAKEFILE)
        command = [sys.executable, "-m", "snakemake", "--cores", "4", "--resources", "slot=1"]
        # Subsampling as in profiles/default.
        command += ["--scheduler", "greedy", "--scheduler-subsample", "200", "--quiet", "all"]
        run = subprocess.Popen(command, cwd=folder)
        process, threads = psutil.Process(run.pid), 0
        while len(list(Path(folder).glob("finish/*"))) < finish:
            threads = max(threads, process.num_threads())
            time.sleep(0.2)
        before, end = sum(process.cpu_times()[:2]), time.monotonic() + seconds
        while time.monotonic() < end:
            threads = max(threads, process.num_threads())
            time.sleep(0.2)
        spent = sum(process.cpu_times()[:2]) - before
        children = process.children(recursive=True)
        run.send_signal(signal.SIGKILL)
        for child in children:
            child.kill()
        run.wait()
    return spent, threads


def main() -> None:
    """Measure both and print a line for each."""
    parser = command_line(__doc__)
    parser.add_argument("--finish", type=int, default=300)
    parser.add_argument("--ready", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=20)
    given = parser.parse_args()
    print(environment("snakemake"))
    for limited, name in ((True, "with the limit"), (False, "without it")):
        spent, threads = measure(given.finish, given.ready, given.seconds, limited)
        print(f"{name}: {spent:.2f} s of processor time, {threads} threads", flush=True)


if __name__ == "__main__":
    main()
