"""Shared code of the campaigns of kills and histories: calls that may hang, and a comparison of results."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import pandas as pd
import psutil
from tests.workflow.tiny import TinyChain

from benchmarks.common import command_line, commit, environment
from dpsweep import __version__
from dpsweep.base.files import read_json, write_json
from dpsweep.cli import preload
from dpsweep.planning.outputs import Outputs
from dpsweep.study import Paths, Study

# A run hangs if its processes use less processor time than this within this time, also on a busy machine.
IDLE_SECONDS, IDLE_PROCESSOR_SECONDS = 300.0, 0.5
LEFT_SECONDS = 300.0


def processes(folder: Path) -> list[psutil.Process]:
    """Return the processes with their working directory in a folder."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied, FileNotFoundError):
            if process.cwd().startswith(str(folder)) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def left_in(folder: Path) -> list[str]:
    """Wait until no process works in a folder; return the commands of those that remain."""
    deadline = time.monotonic() + LEFT_SECONDS
    while (left := processes(folder)) and time.monotonic() < deadline:
        time.sleep(1)
    return [" ".join(process.cmdline()) for process in left]


class Run(Protocol):
    """A running call of Snakemake, with methods as in `subprocess.Popen`."""

    pid: int

    def poll(self) -> int | None:
        """Return the exit status, or None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; return the exit status."""

    def send_signal(self, number: int) -> None:
        """Send a signal to Snakemake."""


def start(chain: TinyChain, from_shell: bool = False) -> Run:
    """Start the command with its own server, which a kill ends too."""
    others = (preload.ADDRESS, preload.STARTED_BY)
    environment = {key: value for key, value in chain.environment.items() if key not in others}
    return (chain.start if from_shell else chain.fork)(environment=environment)


def unlock(chain: TinyChain) -> None:
    """Remove the lock of a killed call, as Snakemake's message tells users to do."""
    status = chain.fork(options=("--unlock",)).wait()
    assert status == 0, chain.said


def wait(run: Run, folder: Path) -> int | None:
    """Wait for the end of a run, and return its status; kill it and return None if it hangs."""
    used, since = -1.0, time.monotonic()
    while True:
        with suppress(subprocess.TimeoutExpired):
            return run.wait(timeout=10)
        now = sum(_processor_seconds(process) for process in processes(folder))
        if abs(now - used) > IDLE_PROCESSOR_SECONDS:
            used, since = now, time.monotonic()
        if time.monotonic() - since > IDLE_SECONDS:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()
            return None


def _processor_seconds(process: psutil.Process) -> float:
    with suppress(psutil.NoSuchProcess):
        return float(sum(process.cpu_times()[:2]))
    return 0.0


def undisturbed(scratch: Path) -> TinyChain:
    """Return the tiny study after an undisturbed run."""
    base = TinyChain(scratch / "base")
    if not (base.results / "report.html").exists():
        status = start(base).wait()
        assert status == 0, base.said
    return base


def wrong_outputs(chain: Any, expected: Path, status: int | None) -> list[str]:
    """Return the outputs of a successful run that differ from those of a fresh run."""
    return list(differences(chain.parsed, chain.results, expected)) if status == 0 else []


def outcome(run: Run, chain: TinyChain, expected: Path) -> dict[str, Any]:
    """Wait for the end of a run, and return its status and faults."""
    started = time.monotonic()
    status = wait(run, chain.folder)
    return {
        "exit": status,
        "seconds": round(time.monotonic() - started, 1),
        "hangs": status is None,
        "left": left_in(chain.folder),
        "wrong": wrong_outputs(chain, expected, status),
    }


def is_good(outcome: dict[str, Any]) -> bool:
    """Tell whether a run ended, left no process, and has no wrong output."""
    return not (outcome["hangs"] or outcome["left"] or outcome["wrong"])


def grow(
    file: Path,
    what: str,
    try_one: Callable[[Path, int], dict[str, Any]],
    size: Callable[[dict[str, Any]], int],
    is_good: Callable[[dict[str, Any]], bool],
) -> None:
    """Add results to a file until there are enough, or the time is over: the command line of a campaign.

    Args:
        file: JSON file of results, each with version and commit; a campaign resumes with it, unless --anew.
        what: the key of the list of results.
        try_one: computes the result of a seed in a scratch folder.
        size: returns the weight of a result in the count.
        is_good: tells whether a result is good; the folders of bad results are kept.
    """
    parser = command_line(sys.modules["__main__"].__doc__)
    parser.add_argument("count", type=int, help="in total, including earlier calls")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after this time")
    parser.add_argument("--scratch", type=Path, help="folder for runs; by default a new one")
    parser.add_argument("--anew", action="store_true", help="discard the results of earlier calls")
    arguments = parser.parse_args()
    scratch = (arguments.scratch or Path(tempfile.mkdtemp(prefix=f"{what}-"))).resolve()
    scratch.mkdir(exist_ok=True)
    deadline = time.monotonic() + 60 * arguments.minutes
    goes_on = file.exists() and not arguments.anew
    found: list[dict[str, Any]] = read_json(file)[what] if goes_on else []
    print(f"{len(found)} results of earlier calls")
    while sum(map(size, found)) < arguments.count and time.monotonic() < deadline:
        seed = 1 + max((each["seed"] for each in found), default=0)
        result = try_one(scratch, seed)
        found.append({"seed": seed, "version": __version__, "commit": commit(), **result})
        good = is_good(result)
        print(time.strftime("%H:%M:%S"), "good" if good else "BAD", found[-1], flush=True)
        made_with = environment("torch", "snakemake", load=False)
        write_json(file, {"environment": made_with, what: found})
        if not good:
            shutil.copytree(scratch / "run", scratch / f"bad-{seed}", symlinks=True)


def content(file: Path) -> Any:
    """Return a file's content without times and without a profile of Snakemake.

    Everything else is the same in every run, to the last bit.
    """
    if file.name.startswith("trials-") or file.parent.name in ("sweeps", "problems"):
        frame = pd.read_parquet(file)
        return frame.drop(columns=["wall_seconds", "examples_per_second"]).to_json()
    if file.name == "explore.html":
        # The page contains the command that makes it, which depends on the profile.
        return file.read_text().replace("snakemake --profile=slurm ", "snakemake ")
    if file.name == "report.html":
        page = re.sub(r"<time .*?</time>", "", file.read_text())
        page = re.sub(r"\d+ notes?\b", "", page)
        return re.sub(r"[\d.,]+ (s|min|h)\b", "", page)
    return file.read_bytes()


def differences(study: Study, found: Path, expected: Path) -> Iterator[str]:
    """Yield the outputs of a study that are missing in a results folder or differ from the expected ones."""
    for output in Outputs(study, Paths(Path())).every():
        for file in output.files:
            if not (found / file).exists():
                yield f"{file} is missing"
            elif content(found / file) != content(expected / file):
                yield f"{file} differs"
