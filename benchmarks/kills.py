"""Kill runs at random moments, run the same command again, and compare with a run that nobody killed.

    python -m benchmarks.kills 300    # goes on where it was stopped

A kill is a signal (SIGTERM, SIGINT, SIGKILL, SIGHUP) to Snakemake, to one process of a job, or to the
whole process group, at a random time of a run that begins with nothing or with some outputs
missing. Then the same command runs to its end. Its outputs must be those of the run that nobody
killed, and no process may be left or hang.

The result goes to benchmarks/results/kills.json, a line for every kill.
"""

import argparse
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from tests.workflow.tiny import TinyChain, differences

from dpsweep import preload
from dpsweep.files import read_json, write_json
from dpsweep.planning.outputs import Outputs
from dpsweep.study.paths import Paths

RESULTS = Path(__file__).parent / "results"
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGHUP)
VICTIMS = ("Snakemake", "one process of a job", "process group")
# A run of seconds that is not over by then hangs.
PATIENCE_SECONDS = 900.0
LEFT_SECONDS = 60.0


def processes(folder: Path) -> list[psutil.Process]:
    """The processes that work in a folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd().startswith(str(folder)) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, FileNotFoundError):
            pass
    return found


def wait_until_empty(folder: Path) -> list[str]:
    """Wait until no process works in a folder; return those that do not end."""
    deadline = time.monotonic() + LEFT_SECONDS
    while (left := processes(folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return [" ".join(process.cmdline()) for process in left]


def begin(base: Path, folder: Path, draw: random.Random) -> str:
    """Make a folder in which some outputs are missing; say which."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(base, folder)
    results = folder / "results"
    if draw.random() < 0.3:
        shutil.rmtree(results)
        shutil.rmtree(folder / ".snakemake")
        return "everything"
    chain = TinyChain(folder)
    outputs = list(Outputs(chain.parsed, Paths(results)).every())
    for output in draw.sample(outputs, draw.randint(1, len(outputs) // 2)):
        for file in output.files:
            file.unlink(missing_ok=True)
    if draw.random() < 0.5:
        shutil.rmtree(results / "trials")
        return "some outputs, and the trials"
    return "some outputs"


def kill(
    run: "subprocess.Popen[bytes]",
    folder: Path,
    victim: str,
    number: signal.Signals,
    draw: random.Random,
) -> str | None:
    """Send a signal; return the command of the process that got it, None if there is none any more."""
    others = [process for process in processes(folder) if process.pid != run.pid]
    try:
        match victim:
            case "Snakemake":
                run.send_signal(number)
                return "snakemake" if run.poll() is None else None
            case "process group":
                os.killpg(run.pid, number)
                return "all"
            case _ if others:
                chosen = draw.choice(others)
                command = " ".join(chosen.cmdline())
                chosen.send_signal(number)
                return command
    except (ProcessLookupError, psutil.NoSuchProcess):
        pass
    return None


def without_folders(command: str, folder: Path) -> str:
    """Shorten a command line for the results: no path of the machine that it ran on."""
    programs = str(Path(sys.executable).parent)
    return command.replace(str(folder), "...").replace(programs, "...")[:200]


def attempt(base: Path, folder: Path, seed: int, seconds: float) -> dict[str, Any] | None:
    """Kill one run and mend it; return what happened, None if the run was over before."""
    draw = random.Random(seed)
    victim, number = draw.choice(VICTIMS), draw.choice(SIGNALS)
    missing = begin(base, folder, draw)
    chain = TinyChain(folder)
    # As a user's: with a server of its own, which is killed with it.
    alone = {name: value for name, value in chain.environment.items() if name != preload.ADDRESS}
    run = chain.start(alone)
    after = draw.uniform(0.0, seconds)
    time.sleep(after)
    hit = kill(run, folder, victim, number, draw)
    result: dict[str, Any] = {
        **{"seed": seed, "victim": victim, "signal": number.name, "after_seconds": round(after, 2)},
        **{"missing": missing, "hit": hit and without_folders(hit, folder)},
    }
    started = time.monotonic()
    try:
        result["killed_run"] = run.wait(PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
        return result | {"hangs": True}
    result["ended_after_seconds"] = round(time.monotonic() - started, 2)
    result["left"] = wait_until_empty(folder)
    if hit is None:
        return None
    if result["killed_run"] == 0:
        result["wrong_success"] = list(differences(chain.parsed, chain.results, base / "results"))
    return result | finish(chain, base)


def finish(chain: TinyChain, base: Path) -> dict[str, Any]:
    """Run the same command to its end and compare."""
    started = time.monotonic()
    try:
        done = subprocess.run(
            chain.command("all"),
            env=chain.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return {"hangs": True}
    return {
        "hangs": False,
        "exit": done.returncode,
        "seconds": round(time.monotonic() - started, 2),
        "differences": list(differences(chain.parsed, chain.results, base / "results")),
        "left_at_end": wait_until_empty(chain.folder),
        **({"output": done.stdout[-3000:] + done.stderr[-3000:]} if done.returncode else {}),
    }


def is_good(result: dict[str, Any]) -> bool:
    """Whether a killed run left nothing behind, and the next one made everything good."""
    return not (
        result["hangs"]
        or result["exit"]
        or result["differences"]
        or result["left"]
        or result["left_at_end"]
        or result.get("wrong_success")
    )


def campaign(
    count: int,
    file: Path,
    scratch: Path,
    minutes: float,
    kill_one: Callable[[Path, Path, int, float], dict[str, Any] | None],
) -> None:
    """Add kills to a file of results until there are enough, or time is over."""
    deadline = time.monotonic() + 60 * minutes
    found: dict[str, Any] = read_json(file) if file.exists() else {"kills": []}
    base = scratch / "base"
    chain = TinyChain(base)
    preload.start()
    if not (base / "results" / "report.html").exists():
        chain.run()
    kills = found["kills"]
    seed = 1 + max((each["seed"] for each in kills), default=0)
    seconds = 20.0
    while len(kills) < count and time.monotonic() < deadline:
        result = kill_one(base, scratch / "run", seed, seconds)
        seed += 1
        if result is None:
            seconds *= 0.9
            continue
        # Runs are as fast as the machine is busy: the next kill comes within the time of this run.
        seconds = 0.8 * seconds + 0.2 * (result["after_seconds"] + result.get("seconds", seconds))
        kills.append(result)
        print(len(kills), "good" if is_good(result) else "BAD", result, flush=True)
        write_json(file, {"environment": environment(), "kills": kills})
        if not is_good(result):
            shutil.copytree(scratch / "run", scratch / f"bad-{result['seed']}", symlinks=True)


def environment() -> dict[str, Any]:
    """Where the kills were tried."""
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("torch", "snakemake")},
    }


def main() -> None:
    """Run a campaign."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("count", type=int, help="kills in all, those of earlier calls included")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after this time")
    parser.add_argument("--scratch", type=Path, help="folder for runs; by default a new one")
    arguments = parser.parse_args()
    scratch = arguments.scratch or Path(tempfile.mkdtemp(prefix="kills-"))
    campaign(arguments.count, RESULTS / "kills.json", scratch.resolve(), arguments.minutes, attempt)


if __name__ == "__main__":
    main()
