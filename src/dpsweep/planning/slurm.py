"""The few commands of Slurm that running jobs takes, and what Slurm says of their end.

The workflow's executor and ``dpsweep doctor`` both go through here, so what the doctor tries is
what a run would submit.
"""

import getpass
import math
import os
import re
import shlex
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dpsweep.base.errors import DpsweepError

# Slurm's own time-outs are shorter.
_PATIENCE_SECONDS = 120
# As many errors of Slurm are shown of a job: the first ones say what happened.
_FIRST_ERRORS = 4

# What clients say when no controller answers. Any other complaint is about the request.
_UNREACHABLE = re.compile(
    r"Unable to contact slurm controller|Unable to establish|fetch_config|configuration source"
    r"|Socket timed out|Connection refused|Communication connection failure|Zero Bytes were"
    r"|standby mode|Protocol authentication error|Munge|timed out after",
    re.IGNORECASE,
)
# Errors in the log of a job that Slurm wrote, and not the job's own command. That the command failed
# is not among them: its own log says why.
_SLURM_ERROR = re.compile(
    r"(slurmstepd|srun|slurmd)\S*: (error|fatal): (?!.*Exited with exit code)"
)

# States in which a job has ended and does not come back.
_FAILED = {"BOOT_FAIL", "CANCELLED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "OUT_OF_MEMORY"}
_FAILED |= {"REVOKED", "TIMEOUT"}
# Why a job waits that only an operator can start again.
_HELD = "launch failed requeued held"
# These may be followed by a requeue.
_LOST = {"NODE_FAIL", "PREEMPTED"}


class SlurmError(DpsweepError):
    """A command of Slurm failed; the message holds Slurm's own words."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.unreachable = bool(_UNREACHABLE.search(message))
        """No controller answered: nothing is known about the request itself"""


@dataclass(frozen=True)
class Request:
    """Request of one job to Slurm."""

    options: str
    """options of sbatch as one would type them: account, partition, GPU"""
    minutes: int
    megabytes: int
    pack: int = 1
    """how many jobs that ask for so much share one of Slurm"""

    def arguments(self) -> list[str]:
        """The arguments of ``sbatch`` that say so."""
        return [f"--time={self.minutes}", f"--mem={self.megabytes}", *shlex.split(self.options)]


@dataclass(frozen=True)
class Nodes:
    """Nodes of a partition that are alike."""

    minutes: float
    """the longest job of the partition; infinite where there is no limit"""
    megabytes: int
    cpus: int
    gres: str
    """as Slurm writes it, for example ``gpu:a100:4(S:0-1)``"""


def submit(request: Request, script: str, name: str, log: Path) -> str:
    """Hand a job to Slurm and return its number.

    Args:
        request: what the job asks for.
        script: the shell commands that it runs, here in the present folder.
        name: the job's name, by which `states` finds it.
        log: where its output goes; ``%j`` becomes the job's number.

    Raises:
        SlurmError: Slurm refuses the job or does not answer.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    arguments = [f"--job-name={name}", f"--output={log}", "--requeue", *request.arguments()]
    said = _run("sbatch", "--parsable", *arguments, stdin=f"#!/bin/bash\n{script}\n")
    number = re.search(r"^(\d+)", said, re.MULTILINE)
    if number is None:
        raise SlurmError(f"sbatch did not say the number of the job: {said.strip()!r}")
    return number[1]


def test(request: Request) -> None:
    """Ask Slurm whether it would take a job (``sbatch --test-only``).

    Raises:
        SlurmError: it would not, or it does not answer.
    """
    said = _run("sbatch", "--test-only", *request.arguments(), stdin="#!/bin/bash\n")
    if "failure" in said:  # some versions end well after "allocation failure"
        raise SlurmError(said.strip())


def states(name: str) -> dict[str, str]:
    """The state of every job of a name that the controller knows: number -> state.

    A job whose launch failed is held by Slurm, and would wait for ever. It is cancelled, and its state is
    LAUNCH_FAILED.

    Raises:
        SlurmError: the controller does not answer.
    """
    said = _run("squeue", "--noheader", "--states=all", "--format=%i|%T|%r", f"--name={name}")
    jobs = [line.strip().split("|", 2) for line in said.splitlines() if "|" in line]
    held = [number for number, state, reason in jobs if (state, reason) == ("PENDING", _HELD)]
    cancel(held)
    return {number: state for number, state, _ in jobs} | dict.fromkeys(held, "LAUNCH_FAILED")


def failed(state: str | None) -> bool:
    """Whether a job in this state has ended without success, for good."""
    return state in _FAILED


def lost(state: str | None) -> bool:
    """Whether a job has ended unless Slurm requeues it, or is forgotten (None)."""
    return state is None or state in _LOST


def cancel(numbers: Iterable[str]) -> None:
    """End jobs.

    Raises:
        SlurmError: the controller does not answer.
    """
    if chosen := list(numbers):
        _run("scancel", *chosen)


def signal(number: str, name: str) -> None:
    """Send a signal to every process of a job's steps.

    Raises:
        SlurmError: the job does not run, or the controller does not answer.
    """
    _run("scancel", f"--signal={name}", number)


def show(kind: str, name: str) -> dict[str, str]:
    """Ask ``scontrol show`` about a job, a partition or a node.

    Raises:
        SlurmError: it is not known, or the controller does not answer.
    """
    said = _run("scontrol", "show", "--oneliner", kind, name)
    return dict(re.findall(r"(?:^|\s)(\w[\w/:]*)=(\S*)", said))


def ending(number: str) -> str:
    """How a job ended, on one line, in Slurm's words."""
    try:
        job = show("job", number)
    except SlurmError:
        return _ending_from_accounting(number)
    details = [job.get("JobState", "ended")]
    if (reason := job.get("Reason", "None")) != "None":
        details.append(f"reason {reason}")
    details.append(f"exit code {job.get('ExitCode', '?')}")
    asked = f"asked for {job.get('TimeLimit')}, {job.get('MinMemoryNode', '?')} of memory"
    details.append(f"ran {job.get('RunTime')} on {job.get('NodeList') or 'no node'}, {asked}")
    return f"Slurm job {number}: " + "; ".join(details)


def _ending_from_accounting(number: str) -> str:
    fields = "State,Reason,ExitCode,Elapsed,NodeList"
    try:
        said = _run("sacct", "-X", "-n", "-P", "-j", number, f"--format={fields}").strip()
    except SlurmError:
        said = ""
    if not said:
        return f"Slurm job {number}: Slurm does not know it any more"
    state, reason, code, elapsed, nodes = said.splitlines()[-1].split("|")
    return (
        f"Slurm job {number}: {state}; reason {reason}; exit code {code}; ran {elapsed} on {nodes}"
    )


def own_words(log: Path) -> list[str]:
    """The errors that Slurm itself wrote into a job's log (the first ones, each once)."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return list(dict.fromkeys(line for line in lines if _SLURM_ERROR.match(line)))[:_FIRST_ERRORS]


def partitions() -> dict[str, list[Nodes]]:
    """The partitions of the cluster.

    Raises:
        SlurmError: the controller does not answer.
    """
    said = _run("sinfo", "--noheader", "--all", "--format=%R|%l|%m|%c|%G")
    found: dict[str, list[Nodes]] = {}
    for line in said.splitlines():
        name, limit, megabytes, cpus, gres = line.strip().split("|")
        nodes = Nodes(_minutes(limit), _leading(megabytes), _leading(cpus), gres)
        found.setdefault(name, []).append(nodes)
    return found


def accounts() -> list[str]:
    """List what the user may charge, as ``account/partition/qos``; empty where that is unknown."""
    try:
        user = getpass.getuser()
        said = _run(
            *("sacctmgr", "--noheader", "--parsable2", "show", "associations"),
            *(f"user={user}", "format=account,partition,qos"),
        )
    except SlurmError:
        return []
    return sorted({line.strip().replace("|", "/") for line in said.splitlines() if line.strip()})


def _minutes(limit: str) -> float:
    """Minutes of a time as Slurm writes it: ``[days-]hours:minutes:seconds`` or ``infinite``."""
    days, _, clock = limit.rpartition("-")
    if not re.fullmatch(r"[\d:]+", clock):
        return math.inf
    seconds = 0
    for part in clock.split(":"):
        seconds = 60 * seconds + int(part)
    return int(days or 0) * 24 * 60 + seconds / 60


def _leading(number: str) -> int:
    """The smallest of nodes that differ is followed by a plus."""
    return int(re.sub(r"\D.*", "", number) or 0)


def _run(*command: str, stdin: str | None = None) -> str:
    # A run that is itself inside a job must not hand that job's settings on.
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("SLURM_") or name == "SLURM_CONF"
    }
    try:
        done = subprocess.run(
            command,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_PATIENCE_SECONDS,
            env=environment,
        )
    except FileNotFoundError as error:
        raise SlurmError(
            f"{command[0]}: command not found: {os.uname().nodename} has no Slurm, or its `bin` "
            "folder is not on PATH"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise SlurmError(f"{command[0]} timed out after {_PATIENCE_SECONDS} s") from error
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip()
        raise SlurmError(words or f"{shlex.join(command)} failed with status {done.returncode}")
    return done.stdout + (done.stderr if "--test-only" in command else "")
