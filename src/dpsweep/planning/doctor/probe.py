"""One short job of a kind: it does what a real one does, and writes down each step that it has made."""

import json
import re
import shlex
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dpsweep.planning import failures, slurm
from dpsweep.planning.cluster import Kind

STEPS = ("request", "start", "snakemake", "command", "gpu", "signal", "requeue")
"""Steps of a job, in this order, after Slurm has accepted its request"""

WITHOUT_GPU = STEPS[:4]

# From one step to the next: a container and torch take their time to start.
_STEP_SECONDS = 90.0
# Files that a job has written may come late on a shared file system.
_FILE_SECONDS = 5.0
_SIGNAL_SECONDS = 20.0
_REASON_SECONDS = 10.0
_MINUTES = 10
# Of a log, the last lines.
_LINES = 5
# Reasons to wait that pass without a change of the request.
_BUSY = re.compile(r"None|Priority|Resources|BeginTime|Licenses|(Assoc|QOS)Grp\w+|Prolog|Cleaning")
# A GPU keeps some of its memory for itself.
_LEAST_MEMORY_SHARE = 0.85

_SCRIPT = """\
if [ "${{SLURM_RESTART_COUNT:-0}}" != 0 ]; then exit 0; fi
cd {project} && [ -e {token} ] || {{ echo "{project} is not here" >&2; exit 1; }}
say() {{ printf '{{"step": "%s", "found": "%s"}}\\n' "$1" "$2" >> {steps}; }}
step="srun --ntasks=1 --cpu-bind=q ${{SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK}}"
say start "$(hostname)"
$step {python} -c 'import snakemake, dpsweep.planning' || exit 1
say snakemake "$(hostname)"
$step bash -c {command}
"""


def write_step(path: Path, step: str, found: str, **more: float) -> None:
    """Add a step that a job has made to the file that tells of them.

    Args:
        path: of that file; a line is a step.
        step: its name; see `STEPS`.
        found: what the step found, in words.
        more: what it measured, by name.
    """
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps({"step": step, "found": found} | more) + "\n")


def read_steps(path: Path) -> list[dict[str, Any]]:
    """The steps that a job has written; the last one may still be on its way."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except OSError:
        return []
    return [json.loads(line) for line in lines if line.endswith("}\n")]


@dataclass(frozen=True)
class Fault:
    """Something that does not work."""

    check: str
    """what it is about, in a word: account, partition, setup, signal, ..."""
    found: str
    """what was found, with the words of who said so"""
    remedy: str
    """what to change"""


@dataclass
class Patient:
    """A kind of job, or this machine, and how its steps went."""

    name: str
    steps: tuple[str, ...]
    passed: dict[str, str] = field(default_factory=dict)
    """step -> what was found"""
    faults: list[Fault] = field(default_factory=list)
    waits: str = ""
    """why its job waits in the queue, where that is no mistake"""

    @property
    def next_step(self) -> str | None:
        """The first step that was not made; None where all were."""
        return next((step for step in self.steps if step not in self.passed), None)

    def mark(self, step: str) -> str:
        """How a step went, for a table: of those that were not made, the first one tells why."""
        if step not in self.steps:
            return ""
        if step in self.passed:
            return "ok"
        if step != self.next_step:
            return "-"
        return "waits" if self.waits else "FAILED"


class Probe(Patient):
    """A short job of a kind.

    Args:
        kind: what it asks for; its time is cut to some minutes.
        command: shell code that starts ``dpsweep probe`` as rules start their commands.
        folder: where it writes, in the results folder.
        patience: how many seconds it may wait in the queue.
    """

    def __init__(self, kind: Kind, command: str, folder: Path, patience: float) -> None:
        super().__init__(kind.name, WITHOUT_GPU if kind.gpu is None else STEPS)
        self._kind = kind
        self._command = command
        self._folder = folder
        self._patience = patience
        name = re.sub(r"\W+", "-", kind.name).strip("-")
        self._steps = folder / f"{name}.steps"
        self._log = folder / f"{name}.txt"
        self.number = ""
        """the job's number in Slurm; empty before it is submitted"""
        self._begun = self._progress = time.monotonic()
        self._ended = self._signalled = 0.0
        self._reason, self._reason_since = "", 0.0
        self.finished = False

    def submit(self, name: str) -> None:
        """Send the job.

        Raises:
            SlurmError: Slurm does not take it.
        """
        flag = "" if self._kind.gpu is None else " --gpu"
        # Snakemake, which calls the shell in a real job, leaves this signal to the training.
        command = f"trap '' USR1; {self._command}{flag} {shlex.quote(str(self._steps))}"
        script = _SCRIPT.format(
            project=shlex.quote(str(Path.cwd())),
            token=shlex.quote(str(self._folder / "token")),
            steps=shlex.quote(str(self._steps)),
            python=shlex.quote(sys.executable),
            command=shlex.quote(f"{command} > {shlex.quote(str(self._log))} 2>&1"),
        )
        request = replace(self._kind.request, minutes=min(_MINUTES, self._kind.request.minutes))
        self.number = slurm.submit(request, script, name, self._folder / "slurm-%j.txt")
        self.passed["request"] = f"Slurm job {self.number}"

    def refuse(self, words: str) -> None:
        """Note that Slurm did not take the job although it said it would."""
        self.finished = True
        remedy = "ask for the limits of your account: `sacctmgr show qos`, `sacctmgr show assoc`"
        self.faults.append(Fault("request", words, remedy))

    def look(self, state: str | None) -> None:
        """Take in what the job has written, and what Slurm says of it.

        Args:
            state: the job's state; None where Slurm does not know it any more.
        """
        self._read()
        now, step = time.monotonic(), self.next_step
        if step is None:
            self.finished = True
        elif step == "requeue" and self._restarted():
            self.passed["requeue"] = "ok"
            self.finished = True
        elif state == "PENDING":
            self._wait(now)
        elif state is None or slurm.failed(state) or state == "COMPLETED":
            self._ended = self._ended or now
            if now - self._ended > _FILE_SECONDS:
                self._give_up(step, slurm.ending(self.number))
        elif self._signalled and step == "signal" and now - self._signalled > _SIGNAL_SECONDS:
            self._give_up(step, f"no signal came within {_SIGNAL_SECONDS:g} s of scancel")
        elif now - self._progress > _STEP_SECONDS:
            self._give_up(step, f"nothing happened for {_STEP_SECONDS:g} s")

    def _read(self) -> None:
        for written in read_steps(self._steps):
            step = written["step"]
            if step == "ready" and not self._signalled:
                self._signalled = time.monotonic()
                slurm.signal(self.number, "USR1")
            if step in self.steps and step not in self.passed:
                self.passed[step] = written["found"]
                self._progress = time.monotonic()
                self._judge(step, written)

    def _judge(self, step: str, written: dict[str, Any]) -> None:
        """Compare what a step found with what it should be."""
        gpu = self._kind.gpu
        if step != "gpu" or gpu is None:
            return
        gigabytes = written["gigabytes"]
        if 0 < gigabytes < _LEAST_MEMORY_SHARE * gpu.memory_gigabytes:
            self.faults.append(
                Fault(
                    "gpu memory",
                    f"{written['found']} has {gigabytes:g} GB; slurm.gpus says "
                    f"{gpu.memory_gigabytes:g} for {gpu.request}",
                    f"set memory_gigabytes to {gigabytes:.0f}, or correct `request`",
                )
            )

    def _restarted(self) -> bool:
        try:
            return int(slurm.show("job", self.number).get("Restarts", 0)) > 0
        except slurm.SlurmError:
            return False

    def _wait(self, now: float) -> None:
        """Note why the job waits; give up on what will not pass, and when patience is over."""
        self._progress = now  # the time of a step begins when the job does
        reason = slurm.show("job", self.number).get("Reason", "None")
        if reason != self._reason:
            self._reason, self._reason_since = reason, now
        if not _BUSY.match(reason) and now - self._reason_since > _REASON_SECONDS:
            self.finished = True
            self.faults.append(
                Fault(
                    "queue",
                    f"Slurm does not start the job: {reason}",
                    f"see `sinfo -p {self._kind.partition}`: the partition may be down, or closed to "
                    f"your account; set slurm.{self._kind.partition_key}, or wait",
                )
            )
        elif now - self._begun > self._patience:
            self.finished = True
            self.waits = f"not started within {self._patience:g} s: {reason}"

    def _give_up(self, step: str, how: str) -> None:
        """Say why a step was not made."""
        self.finished = True
        log = self._folder / f"slurm-{self.number}.txt"
        said = [*slurm.own_words(log), *failures.tail(log)[-_LINES:]]
        if step in ("command", "gpu", "signal", "requeue"):
            said = failures.tail(self._log)[-_LINES:]
        words = "\n".join(dict.fromkeys([*said, how]))
        self.faults.append(explain(step, words))


def explain(step: str, words: str) -> Fault:
    """The fault that kept a step from being made."""
    setup = re.search(r"this line of slurm\.setup failed: (.*)", words)
    if setup:
        remedy = f"correct slurm.setup; it works where this does in a job: {setup[1]}"
        return Fault("setup", words, remedy)
    about, remedy = {
        "start": (
            "folder",
            f"a job must see {Path.cwd()}: put the clone and its results on a file system that "
            "compute nodes mount, and can write to",
        ),
        "snakemake": (
            "python",
            f"a job must start {sys.executable} and import snakemake: put the environment on a file "
            "system that compute nodes mount",
        ),
        "command": ("command", "set slurm.command to what starts dpsweep in a job, or slurm.setup"),
        "gpu": ("gpu", "see the message; a container needs --nv (CUDA) or --rocm (AMD)"),
        "signal": (
            "signal",
            "slurm.command must let SIGUSR1 through to dpsweep and run it in the job itself; without "
            "it, cells that take longer than a job start again from their last checkpoint",
        ),
        "requeue": (
            "requeue",
            "a job must be allowed to run `scontrol requeue $SLURM_JOB_ID`: remove --no-requeue from "
            "slurm.options, and see that scontrol is on PATH in a job",
        ),
    }[step]
    return Fault(about, words, remedy)
