"""Disturb runs on a real Slurm at random moments, run the same command again, and compare.

    python -m benchmarks.campaigns.kills_slurm 50    # as root, with Slurm (make test-slurm); goes on

As `kills`, with jobs on the one-node cluster of the tests. A run is disturbed by a signal
(SIGTERM, SIGINT, SIGKILL, SIGHUP) to Snakemake or to a process of a job, by scancel, by a node that is
set down, or by a daemon of the node that is killed; node and daemon come back. Jobs of a Snakemake
that was killed outright go on, and the next call may start beside them.

The result goes to benchmarks/results/kills_slurm.json.
"""

import random
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import yaml
from tests.slurm import cluster
from tests.slurm.site import Site
from tests.workflow.chain import Chain
from tests.workflow.tiny import STUDY, TinyChain

from benchmarks.campaigns import campaign, kills
from benchmarks.common import RESULTS
from dpsweep.study import Study

Run = subprocess.Popen[bytes]
OUTRIGHT = (signal.SIGKILL, signal.SIGHUP)
"""Signals after which Snakemake cancels no job"""
DISTURBED = ("Snakemake", "process", "scancel", "node", "daemon")
DISTURBANCES = 6
"""of one history at most"""
FILES = 10
"""written by a run before its disturbance at most; one that has anything to do writes more"""
MENDED_SHARE = 0.7
"""of the histories that begin with finished results, of which some are lost"""


class TinySite(Site):
    """The tiny study in a clone that is set up for the cluster."""

    def __init__(self, folder: Path, base: TinyChain) -> None:
        super().__init__(folder, STUDY, base.results)
        shutil.copytree(base.folder / "images", folder / "images")

    def write(self) -> None:
        """Write the study under the name that it has elsewhere: the report tells it."""
        Chain.write(self)

    def command(self, *targets: str, **_: Any) -> list[str]:
        """The call of Snakemake."""
        return super().command("--config", "study=study.yaml", "--", *targets)

    @property
    def parsed(self) -> Study:
        """The study."""
        return Study.model_validate(yaml.safe_load((self.folder / "study.yaml").read_text()))


def disturb(run: Run, what: str, number: signal.Signals, draw: random.Random) -> str | None:
    """Let one thing happen to a run; say what, None if there is nothing now that it could happen to."""
    match what:
        case "Snakemake":
            run.send_signal(number)
            return f"Snakemake, {number.name}"
        case "process":
            with suppress(psutil.NoSuchProcess):
                daemons = [each for each in psutil.process_iter() if each.name() == "slurmstepd"]
                inside = [process for each in daemons for process in each.children(recursive=True)]
                if inside:
                    draw.choice(inside).send_signal(number)
                    return f"one process of a job, {number.name}"
            return None
        case "scancel":
            jobs = cluster.queue()
            if jobs:
                subprocess.run(["scancel", draw.choice(jobs)[0]], check=True, timeout=60)
            return "one job, scancel" if jobs else None
        case "node":
            cluster.lose_node()
            return "the node, down and up again"
    cluster.kill_daemon()
    return "slurmd, SIGKILL"


def run_and_disturb(site: TinySite, expected: Path, draw: random.Random) -> dict[str, Any]:
    """Run the command and disturb it; say what happened. Nothing is hit if it ends before."""
    what, number = draw.choice(DISTURBED), draw.choice(kills.SIGNALS)
    run = site.start("all")
    moment = kills.wait_for_moment(run, site.results, draw, from_shell=True, files=FILES)
    hit = None
    while moment and hit is None and run.poll() is None:
        hit = disturb(run, what, number, draw)
        time.sleep(0.1)
    status = campaign.wait(run, site.folder)
    outright = status in [-number for number in OUTRIGHT]
    result = {"moment": moment, "hit": hit, "exit": status, "hangs": status is None}
    if outright and draw.random() < 0.5:
        return result | {"left": [], "wrong": []}  # the next call starts beside its jobs
    jobs = left_in_queue()
    return result | {
        "left": [] if outright else jobs,
        "wrong": campaign.wrong(site, expected, status),
    }


def left_in_queue() -> list[str]:
    """Wait until the queue is empty; return the jobs that do not end."""
    deadline = time.monotonic() + campaign.LEFT_SECONDS
    while (jobs := cluster.queue()) and time.monotonic() < deadline:
        time.sleep(1)
    return [" ".join(each) for each in jobs]


def history(scratch: Path, seed: int) -> dict[str, Any]:
    """Disturb one run after another, until one ends before."""
    base, folder = campaign.undisturbed(scratch), scratch / "run"
    shutil.rmtree(folder, ignore_errors=True)
    site, draw = TinySite(folder, base), random.Random(seed)
    missing = "all that the cluster makes"
    if draw.random() < MENDED_SHARE:
        shutil.copytree(base.results, site.results, dirs_exist_ok=True)
        missing = kills.lose_some(site, draw)
    disturbed: list[dict[str, Any]] = []
    result = run_and_disturb(site, base.results, draw)
    while result["hit"] is not None:
        disturbed.append(result)
        if len(disturbed) < DISTURBANCES:
            result = run_and_disturb(site, base.results, draw)
        else:
            status = campaign.wait(site.start("all"), folder)
            wrong = campaign.wrong(site, base.results, status)
            result = {"hit": None, "exit": status, "hangs": status is None}
            result |= {"left": left_in_queue(), "wrong": wrong}
    return {"missing": missing, "kills": disturbed, "end": result}


if __name__ == "__main__":
    campaign.grow(
        RESULTS / "kills_slurm.json",
        "histories",
        history,
        size=lambda result: len(result["kills"]),
        is_good=kills.is_good,
        during=cluster.running(),
    )
