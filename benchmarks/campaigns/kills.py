"""Kill runs at random moments, run the same command again, and compare with an undisturbed run.

    python -m benchmarks.campaigns.kills 300    # resumes after a stop

A history begins without outputs, or with some outputs missing or damaged. The command runs and is killed,
again and again, until it ends before its kill; `snakemake --unlock` runs before every run. A kill is a
signal (SIGTERM, SIGINT, SIGKILL, SIGHUP) to Snakemake, to one other process of the run, or to the whole
process group. Its moment is drawn by the progress of the run, not by time: by Snakemake's processor time
before the first job, by the number of files that jobs have written after it.

After every kill, the run must end and leave no process. Outputs that count as current must be those of the
undisturbed run; with exit status 0, and at the end of a history, all outputs must be.

The result goes to benchmarks/results/kills.json.
"""

import os
import random
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from tests.workflow.tiny import TinyChain

from benchmarks.campaigns import campaign
from benchmarks.common import RESULTS
from dpsweep.planning.outputs import Outputs
from dpsweep.study import Paths

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGHUP)
VICTIMS = ("Snakemake", "one other process", "process group")
KILLS = 10
"""largest number in one history"""
START_SHARE = 0.25
"""share of kills before the first job"""
SHELL_SHARE = 0.1
"""share of runs from a shell; the others are forked (see `warm`), which is ten times cheaper"""
START_SECONDS = {True: 2.5, False: 0.5}
"""processor time of Snakemake before its first job, about; from a shell (True) and forked (False)"""
FILES = 30
"""largest number of files written before a kill; a whole run writes about 75"""


def damage_outputs(chain: TinyChain, draw: random.Random) -> str:
    """Delete all outputs, or delete and damage some; return a description."""
    if draw.random() < 0.5:
        shutil.rmtree(chain.results)
        shutil.rmtree(chain.folder / ".snakemake")
        return "everything"
    outputs = list(Outputs(chain.parsed, Paths(chain.results)).every())
    for output in draw.sample(outputs, draw.randint(1, len(outputs) // 2)):
        for file in output.files:
            if draw.random() < 0.3:
                file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
            else:
                file.unlink()
    if draw.random() < 0.5:
        shutil.rmtree(chain.results / "trials")
        return "some outputs, and the trials"
    return "some outputs"


def wait_for_moment(
    run: campaign.Run, results: Path, draw: random.Random, from_shell: bool = False
) -> str | None:
    """Wait for a random moment of a run; return its description, or None if the run ends before."""
    began = time.time_ns()
    snakemake = psutil.Process(run.pid)
    early = draw.random() < START_SHARE
    seconds, count = draw.uniform(0.0, START_SECONDS[from_shell]), draw.randint(1, FILES)
    pause = draw.uniform(0.0, 0.5)

    def reached() -> bool:
        if early:
            with suppress(psutil.NoSuchProcess):  # the process may end at any time
                times = snakemake.cpu_times()
                return float(times.user + times.system) >= seconds
            return False
        return written_since(results, began) >= count

    while run.poll() is None:
        if reached():
            time.sleep(0.0 if early else pause)
            return f"{seconds:.2f} s of Snakemake" if early else f"{count} files"
        time.sleep(0.1)
    return None


def written_since(results: Path, began: int) -> int:
    """Return the number of files written since a time (ns)."""
    count = 0
    for folder, _, files in os.walk(results):
        for name in files:
            with suppress(FileNotFoundError):
                count += Path(folder, name).stat().st_mtime_ns > began
    return count


def kill(
    run: campaign.Run, folder: Path, victim: str, number: signal.Signals, draw: random.Random
) -> str | None:
    """Send a signal; return the command of its receiver, or None if no process is left."""
    with suppress(ProcessLookupError, psutil.NoSuchProcess):
        if victim == "Snakemake":
            run.send_signal(number)
            return "snakemake" if run.poll() is None else None
        if victim == "process group":
            os.killpg(run.pid, number)
            return "all"
        others = [process for process in campaign.processes(folder) if process.pid != run.pid]
        if others:
            chosen = draw.choice(others)
            command = " ".join(chosen.cmdline())
            chosen.send_signal(number)
            return without_folders(command, folder)
    return None


def without_folders(command: str, folder: Path) -> str:
    """Shorten a command line for the results, and remove paths of this machine."""
    if "forkserver" in command:
        return "the server, or a command in it"
    programs = str(Path(sys.executable).parent)
    return command.replace(str(folder), "...").replace(programs, "...")[:200]


def run_and_kill(chain: TinyChain, expected: Path, draw: random.Random) -> dict[str, Any]:
    """Run the command and kill it; return the result. ``hit`` is None if the run ends before the kill."""
    campaign.unlock(chain)
    victim, number = draw.choice(VICTIMS), draw.choice(SIGNALS)
    from_shell = draw.random() < SHELL_SHARE
    run = campaign.start(chain, from_shell)
    moment = wait_for_moment(run, chain.results, draw, from_shell)
    hit = moment and kill(run, chain.folder, victim, number, draw)
    tried = {"from_shell": from_shell, "victim": victim, "signal": number.name, "moment": moment}
    return tried | {"hit": hit} | campaign.outcome(run, chain, expected)


def history(scratch: Path, seed: int) -> dict[str, Any]:
    """Kill one run after another until a run ends before its kill."""
    base, folder = campaign.undisturbed(scratch), scratch / "run"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(base.folder, folder)
    chain, draw = TinyChain(folder), random.Random(seed)
    missing = damage_outputs(chain, draw)
    kills: list[dict[str, Any]] = []
    while len(kills) < KILLS:
        result = run_and_kill(chain, base.results, draw)
        if result["hit"] is None:
            break
        kills.append(result)
    else:
        campaign.unlock(chain)
        result = campaign.outcome(campaign.start(chain), chain, base.results)
    return {"missing": missing, "kills": kills, "end": result}


def is_good(result: dict[str, Any]) -> bool:
    """Tell whether all kills and the end were good, and the last run succeeded."""
    return (
        all(map(campaign.is_good, [*result["kills"], result["end"]])) and not result["end"]["exit"]
    )


if __name__ == "__main__":
    campaign.grow(
        RESULTS / "kills.json",
        "histories",
        history,
        size=lambda result: len(result["kills"]),
        is_good=is_good,
    )
