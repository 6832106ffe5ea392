"""The examination: all kinds of job at once, and this machine beside them."""

import hashlib
import os
import secrets
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import dpsweep
from dpsweep.base.errors import DpsweepError
from dpsweep.planning import failures, slurm
from dpsweep.planning.cluster import Jobs, Site
from dpsweep.planning.doctor import requests
from dpsweep.planning.doctor.probe import STEPS, Fault, Patient, Probe, explain, read_steps
from dpsweep.study import Study
from dpsweep.study.paths import Paths

_LOOK_SECONDS = 1.0
_HERE_SECONDS = 600.0
_LEAST_FREE_BYTES = 10**9
# Of a log, the last lines.
_LINES = 5
_REQUEUE = Path("workflow/scripts/requeue.sh")


@dataclass
class Examination:
    """Findings for each kind of job, and for all of them."""

    patients: list[Patient]
    faults: list[Fault]

    @property
    def healthy(self) -> bool:
        """Whether everything that was tried works."""
        return not any(self._all_faults())

    def lines(self) -> Iterator[str]:
        """The findings as text for a terminal: a table, then what to change."""
        names = [patient.name for patient in self.patients]
        widths = [max(6, len(name)) for name in names]
        if names:
            yield "  ".join([f"{'':<10}", *_padded(names, widths)])
            for step in STEPS:
                marks = [patient.mark(step) for patient in self.patients]
                yield "  ".join([f"{step:<10}", *_padded(marks, widths)]).rstrip()
        for patient in self.patients:
            if patient.waits:
                yield f"{patient.name}: {patient.waits}. --patience waits longer."
            if "gpu" in patient.passed:
                yield f"{patient.name}: {patient.passed['gpu']}"
        # What several kinds of job have in common is one fault, in the words of the first.
        alike: dict[tuple[str, str], list[tuple[str, Fault]]] = {}
        for name, fault in self._all_faults():
            alike.setdefault((fault.check, fault.remedy), []).append((name, fault))
        for number, same in enumerate(alike.values(), start=1):
            fault = same[0][1]
            places = ", ".join(dict.fromkeys(name for name, _ in same if name))
            yield ""
            yield f"{number}. {fault.check}" + (f" ({places})" if places else "")
            yield from (f"   {line}" for line in fault.found.splitlines())
            yield f"   To do: {fault.remedy}."
        yield ""
        if alike:
            yield f"{len(alike)} to change. Then run this again."
        elif any(patient.waits for patient in self.patients):
            yield "Nothing is wrong with what could be tried."
        else:
            yield "Everything works."

    def _all_faults(self) -> Iterator[tuple[str, Fault]]:
        yield from (("", fault) for fault in self.faults)
        for patient in self.patients:
            yield from ((patient.name, fault) for fault in patient.faults)


def examine(
    study: Study,
    study_file: Path,
    paths: Paths,
    site: Site,
    patience: float,
    tell: Callable[[str], None],
) -> Examination:
    """Try every kind of job of a study.

    Args:
        study: the study.
        study_file: its file.
        paths: its files; the jobs write into a folder of its results.
        site: the cluster.
        patience: how many seconds a job may wait in the queue.
        tell: called with a line whenever something is known.

    Raises:
        DpsweepError: this is not the folder of the workflow, or results cannot be written.
    """
    if not _REQUEUE.exists():
        raise DpsweepError(f"{_REQUEUE} is not here: run this in the folder of the Snakefile")
    paths.check_writable()
    if fault := requests.controller():
        return Examination([], [fault])
    jobs = Jobs(study, site)
    command = f"{jobs.shell_setup(_REQUEUE.absolute())}dpsweep probe --study {shlex.quote(str(study_file))}"
    folder = (paths.results / "doctor").absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "token").touch()
    faults = []
    free = shutil.disk_usage(folder).free
    if free < _LEAST_FREE_BYTES:
        found = f"{paths.results.absolute()} has {free / 1e9:.2g} GB left"
        faults.append(Fault("disk", found, "make room, or move `results` of the study"))
    probes = []
    patients = [_here(command, folder)]
    for kind in jobs.kinds():
        probe = Probe(kind, command, folder, patience)
        patients.append(probe)
        if fault := requests.refusal(kind, site):
            probe.faults.append(fault)
        else:
            probes.append(probe)
    _run(probes, f"doctor-{secrets.token_hex(4)}", tell)
    faults += _together(patients)
    return Examination(patients, faults)


def code() -> str:
    """This package and a hash of its source: equal where the same code runs."""
    root = Path(dpsweep.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return f"dpsweep {dpsweep.__version__} ({digest.hexdigest()[:8]})"


def _here(command: str, folder: Path) -> Patient:
    """Try the command on this machine, where Snakemake plans, prepares data and draws on local rules."""
    patient = Patient("here", ("command",))
    log, steps = folder / "here.txt", folder / "here.steps"
    with log.open("wb") as stream:
        try:
            ended = subprocess.run(
                ["bash", "-c", f'{command} "$1"', "bash", str(steps)],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env={name: value for name, value in os.environ.items() if name != "SLURM_JOB_ID"},
                timeout=_HERE_SECONDS,
                check=False,
            )
            how = f"exit status {ended.returncode}" if ended.returncode else ""
        except subprocess.TimeoutExpired:
            how = f"did not end within {_HERE_SECONDS:g} s"
    if not how:
        patient.passed["command"] = read_steps(steps)[-1]["found"]
    else:
        said = [*failures.tail(log)[-_LINES:], f"{how} on {os.uname().nodename}"]
        patient.faults.append(explain("command", "\n".join(said)))
    return patient


def _padded(words: list[str], widths: list[int]) -> list[str]:
    return [f"{word:<{width}}" for word, width in zip(words, widths, strict=True)]


def _run(probes: list[Probe], name: str, tell: Callable[[str], None]) -> None:
    """Submit the jobs of probes and follow them; nothing is left in the queue."""
    told: set[tuple[str, str]] = set()
    try:
        for probe in probes:
            try:
                probe.submit(name)
            except slurm.SlurmError as error:
                probe.refuse(str(error))
        while running := [probe for probe in probes if not probe.finished]:
            states = slurm.states(name)
            for probe in running:
                probe.look(states.get(probe.number))
                for step, found in probe.passed.items():
                    if (probe.name, step) not in told:
                        told.add((probe.name, step))
                        tell(f"{probe.name}: {step}: {found}")
            time.sleep(_LOOK_SECONDS)
    finally:
        slurm.cancel(probe.number for probe in probes if probe.number)


def _together(patients: list[Patient]) -> Iterator[Fault]:
    """Yield faults that only a comparison of the kinds of job shows."""
    codes = {patient.passed.get("command") for patient in patients} - {None}
    if len(codes | {code()}) > 1:
        yield Fault(
            "version",
            "different code runs: " + "; ".join(sorted(map(str, codes | {code()}))),
            "let slurm.command start this clone: `pip install --no-deps -e .` in its environment",
        )
    precisions = {
        patient.passed["gpu"].rpartition(", ")[2] for patient in patients if "gpu" in patient.passed
    }
    if len(precisions) > 1:
        yield Fault(
            "precision",
            f"kinds of GPU compute in different precisions: {', '.join(sorted(precisions))}",
            "set training.precision of the study to float32, so that all trials agree",
        )
