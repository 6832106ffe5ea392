"""What Snakemake's logger plugin ``rich`` leaves out: progress without a terminal, and what jobs ask for.

The plugin draws bars only on terminals; into a file or pipe it writes only failures. Of a dry run with
``-p`` it writes how many jobs a rule has, not their commands and resources.
"""

import logging
import re
import sys
import time
from collections.abc import Iterable, Sequence
from logging import Handler, LogRecord
from typing import Any

from snakemake_interface_logger_plugins.common import LogEvent

from dpsweep.base.units import count, duration

_LINES = 10
DRY = re.compile(r"-\w*n\w*|--dry-?run")
"""An option of a dry run, alone or together with others (``-np``)."""
_COMMANDS = re.compile(r"-\w*p\w*|--printshellcmds")
# Resources that each job asks for, by the words of a line, and those with a number of their own for each job.
_ASKED = {"slurm_partition": "partition", "slurm_account": "account", "gpu": "GPUs", "gres": "gres"}
_ASKED |= {"cpus_per_task": "CPUs", "slurm_extra": "sbatch"}
_RANGES = {"mem_mb": "MB", "runtime": "minutes"}


def start() -> None:
    """Write the progress of this call of Snakemake if no terminal shows bars, except with ``--touch``."""
    if not sys.stderr.isatty() and not {"--touch", "-t"} & set(sys.argv):
        logging.getLogger().addHandler(Tenths())


def show_requests(workflow: Any) -> None:
    """In a dry run with ``-p``, write once for each rule what its jobs ask for.

    Args:
        workflow: of Snakemake.
    """
    if all(any(map(each.fullmatch, sys.argv)) for each in (DRY, _COMMANDS)):
        logging.getLogger().addHandler(Requests(workflow))


class Requests(Handler):
    """A handler that writes resources and command of each rule's jobs to standard error."""

    def __init__(self, workflow: Any) -> None:
        """Prepare for the jobs of a workflow of Snakemake."""
        super().__init__()
        self._workflow = workflow

    def emit(self, record: LogRecord) -> None:
        """Write the lines when Snakemake has counted the jobs."""
        if getattr(record, "event", None) != LogEvent.RUN_INFO:
            return
        rules: dict[str, list[Any]] = {}
        for job in self._workflow.dag.needrun_jobs():
            if job.shellcmd:
                rules.setdefault(job.rule.name, []).append(job)
        for name, jobs in rules.items():
            sys.stderr.write(f"{name}: {requested([dict(job.resources) for job in jobs])}\n")
            sys.stderr.write(f"  {jobs[0].shellcmd}\n")
        sys.stderr.flush()


def requested(jobs: Sequence[dict[str, Any]]) -> str:
    """Describe the resources of a rule's jobs.

    >>> job = {"slurm_partition": "gpu", "gpu": 1, "cpus_per_task": 4, "mem_mb": 3000, "runtime": 25}
    >>> requested([job, job | {"runtime": 40}])
    '2 jobs, partition gpu, GPUs 1, CPUs 4, 3000 MB, 25 to 40 minutes'
    >>> requested([{"gpu": 1, "runtime": 25}])
    '1 job, partition chosen when it is sent, GPUs 1, 25 minutes'

    Args:
        jobs: resources of each by name.
    """

    def different(key: str) -> list[Any]:
        return sorted({job[key] for job in jobs if job.get(key)})

    if not any("gpu" in job for job in jobs):
        return f"{count(len(jobs), 'job')}, on this machine"
    words = [
        f"{word} {_alternatives(found)}"
        for key, word in _ASKED.items()
        if (found := different(key))
    ]
    if not different("slurm_partition"):  # by the plugin, from the job's time, or by Slurm
        words.insert(0, "partition chosen when it is sent")
    for key, unit in _RANGES.items():
        if found := different(key):
            words.append(f"{' to '.join(map(str, sorted({found[0], found[-1]})))} {unit}")
    return ", ".join([count(len(jobs), "job"), *words])


def _alternatives(values: Iterable[Any]) -> str:
    return " or ".join(map(str, values))


class Tenths(Handler):
    """A handler that writes finished jobs, the remaining time and the first figure to standard error."""

    def __init__(self) -> None:
        super().__init__()
        self._began = time.monotonic()
        self._written = 0
        self._figures: dict[int, str] = {}  # file of each job that draws one
        self._any_figure = False

    def emit(self, record: LogRecord) -> None:
        """Write a line if a message of Snakemake completes another tenth or the first figure."""
        event = getattr(record, "event", None)
        if event == LogEvent.PROGRESS:
            self._progress(int(record.done), int(record.total))  # type: ignore[attr-defined]
        elif event == LogEvent.JOB_INFO and record.rule_name == "figure":  # type: ignore[attr-defined]
            self._figures[record.jobid] = record.output[0]  # type: ignore[attr-defined]
        elif event == LogEvent.JOB_FINISHED and not self._any_figure:
            file = self._figures.get(record.job_id)  # type: ignore[attr-defined]
            if file is not None:
                self._any_figure, spent = True, time.monotonic() - self._began
                self._write(f"the first figure is there after {duration(spent)}: {file}")

    def _progress(self, done: int, total: int) -> None:
        tenth = _LINES * done // max(total, 1)
        if tenth <= self._written:
            return
        self._written = tenth
        spent = time.monotonic() - self._began
        left = f", about {duration(spent / done * (total - done))} left" if done < total else ""
        self._write(f"{done} of {total} jobs ({done / total:.0%}), {duration(spent)} spent{left}")

    def _write(self, line: str) -> None:
        sys.stderr.write(f"{time.strftime('%H:%M:%S')} {line}\n")
        sys.stderr.flush()
