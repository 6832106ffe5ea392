"""Snakemake's progress as one line: jobs done, what runs, time spent, time left.

The estimate is by kind of job: those that remain are charged the mean time of their finished
kin, and the sum is divided by how many jobs have been running at once.
"""

import re
import sys
import time
from collections import Counter
from logging import WARNING, LogRecord
from typing import Any

import yaml
from snakemake.logging import DefaultFilter
from snakemake.settings.enums import Quietness
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

from dpsweep.planning.failures import failure

# `--configfile study.yaml` is read by Snakemake before it reads the Snakefile, which then takes the study
# from the file itself. Snakemake must only not stop at this tag of studies; plugins are imported first.
yaml.FullLoader.add_constructor("!replace", yaml.FullLoader.construct_yaml_map)

_INTERRUPTED = re.compile(r"Signals\.SIGINT|exit status 130\b")


def interrupted(message: str) -> bool:
    """Whether Ctrl-C has ended the job that Snakemake's message is about."""
    return _INTERRUPTED.search(message) is not None


# Where the output is no terminal, a line every so many seconds is enough.
_QUIET_SECONDS = 10.0

_ERRORS = {LogEvent.ERROR, LogEvent.JOB_ERROR}
_SHOWN_IN_FULL = {LogEvent.RUN_INFO, LogEvent.ERROR}
# A job says what it is when it starts, on a cluster when it is submitted.
_COUNTED = {LogEvent.JOB_INFO, LogEvent.JOB_FINISHED, LogEvent.PROGRESS}


def stage(rule: str) -> str:
    """The kind of a job: rules that exist once per sweep count as one kind."""
    for prefix in ("train_", "gradient_norms_", "theory_", "aggregate_"):
        if rule.startswith(prefix):
            return prefix.rstrip("_").replace("_", " ")
    return rule.replace("_", " ")


class Forecast:
    """Counts jobs by stage and estimates the time that is left."""

    def __init__(self, clock: Any = time.monotonic) -> None:
        self._clock = clock
        self.begin = clock()
        self.planned: Counter[str] = Counter()
        self.finished: Counter[str] = Counter()
        self._spent: Counter[str] = Counter()
        self._stage: dict[int, str] = {}
        self.running: dict[int, float] = {}

    def plan(self, jobs_per_rule: dict[str, int]) -> None:
        """Set how many jobs every rule has."""
        self.planned = Counter()
        for rule, jobs in jobs_per_rule.items():
            self.planned[stage(rule)] += jobs

    def start(self, job: int, rule: str) -> None:
        """A job of a rule has started."""
        self._stage[job] = stage(rule)
        self.running[job] = self._clock()

    def finish(self, job: int) -> None:
        """A job has ended well."""
        started = self.running.pop(job, None)
        if started is not None:
            kind = self._stage.get(job, "")
            self.finished[kind] += 1
            self._spent[kind] += self._clock() - started

    def drop(self, job: int) -> None:
        """A job has failed; it may start again."""
        self.running.pop(job, None)

    def seconds_left(self) -> float | None:
        """Estimated seconds to the end, or None before the first job has finished."""
        done = sum(self.finished.values())
        if not done:
            return None
        now = self._clock()
        under_way = sum(now - started for started in self.running.values())
        spent = sum(self._spent.values())
        mean = spent / done
        work = sum(
            (jobs - self.finished[kind])
            * (self._spent[kind] / self.finished[kind] if self.finished[kind] else mean)
            for kind, jobs in self.planned.items()
        )
        elapsed = max(now - self.begin, 1e-9)
        at_once = max((spent + under_way) / elapsed, 1e-9)
        return max(work - under_way, 0.0) / at_once

    def running_stages(self) -> str:
        """Jobs that run now, for example ``2 train``."""
        kinds = Counter(self._stage.get(job, "job") for job in self.running)
        return ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())


def clock_time(seconds: float) -> str:
    """Seconds as ``m:ss`` or ``h:mm:ss``."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def _failed(record: Any) -> str:
    """How a job failed: its cell or file, why, and its log."""
    failed = failure(record.output, record.log, record.rule_name)
    # Snakemake's own message, for example of an output that is missing, where the log says nothing.
    reason = failed.reason if failed.is_error else record.rule_msg or failed.reason
    lines = [f"failed: {failed.name}", *reason.splitlines(), f"log: {failed.log}"]
    return f"{time.strftime('%H:%M:%S')} " + "\n  ".join(lines)


class LogHandler(LogHandlerBase):
    """Prints warnings and the job table as Snakemake does, failures in short, and one line of progress."""

    def __post_init__(self) -> None:
        """Start with nothing planned."""
        self._forecast = Forecast()
        self._line = ""
        self._printed = 0.0
        shown = self.common_settings
        quiet = set(shown.quiet or ())
        if shown.dryrun and quiet & {Quietness.RULES, Quietness.ALL}:
            # Snakemake counts the job table as progress, and would not print it.
            quiet = {Quietness.RULES, Quietness.HOST}
        self.addFilter(
            DefaultFilter(
                quiet=quiet,
                debug_dag=shown.debug_dag,
                verbose=shown.verbose,
                dryrun=shown.dryrun,
                printshellcmds=shown.printshellcmds,
            )
        )

    def emit(self, record: LogRecord) -> None:
        """Show one message of Snakemake, or count it."""
        try:
            event = getattr(record, "event", None)
            if event in _ERRORS and interrupted(record.getMessage()):
                return  # the last words of the run say so once
            if event == LogEvent.JOB_ERROR:
                self._forecast.drop(record.jobid)  # type: ignore[attr-defined]
                self._print(_failed(record))
            elif event in _COUNTED and not self.common_settings.dryrun:
                self._count(event, record)
            elif (
                event in _SHOWN_IN_FULL
                or record.levelno >= WARNING
                or self.common_settings.dryrun
                or "Nothing to be done" in record.getMessage()
            ):
                if event == LogEvent.RUN_INFO:
                    self._forecast.plan(
                        {rule: n for rule, n in record.stats.items() if rule != "total"}  # type: ignore[attr-defined]
                    )
                self._print(self.format(record))
        except Exception:
            self.handleError(record)

    def _count(self, event: LogEvent, record: Any) -> None:
        forecast = self._forecast
        if event == LogEvent.JOB_INFO:
            forecast.start(record.jobid, record.rule_name)
        elif event == LogEvent.JOB_FINISHED:
            forecast.finish(record.job_id)
        else:
            self._show_progress(record.done, record.total)

    def _show_progress(self, done: int, total: int) -> None:
        left = self._forecast.seconds_left()
        line = (
            f"{done} of {total} jobs ({done / total:.0%}), "
            f"{clock_time(time.monotonic() - self._forecast.begin)} elapsed"
        )
        if done < total and left is not None:
            line += f", about {clock_time(left)} left"
        running = self._forecast.running_stages()
        if running:
            line += f" (running: {running})"
        now = time.monotonic()
        if sys.stderr.isatty():
            sys.stderr.write("\r\x1b[2K" + line + ("\n" if done == total else ""))
            self._line = "" if done == total else line
        elif done == total or now - self._printed >= _QUIET_SECONDS:
            sys.stderr.write(line + "\n")
            self._printed = now
        sys.stderr.flush()

    def _print(self, text: str) -> None:
        if not text or text == "None":
            return
        prefix = "\r\x1b[2K" if self._line else ""
        sys.stderr.write(f"{prefix}{text}\n{self._line}")
        sys.stderr.flush()

    @property
    def writes_to_stream(self) -> bool:
        """It writes to stderr."""
        return True

    @property
    def writes_to_file(self) -> bool:
        """It writes no file."""
        return False

    @property
    def has_filter(self) -> bool:
        """It filters as Snakemake does, except for the job table of a quiet dry run."""
        return True

    @property
    def has_formatter(self) -> bool:
        """Snakemake's own formatter renders errors and tables."""
        return False

    @property
    def needs_rulegraph(self) -> bool:
        """The rule graph is not shown."""
        return False
