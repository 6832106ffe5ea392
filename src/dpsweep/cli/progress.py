"""The progress of a run without a terminal: a line for every tenth of the jobs, and for the first figure.

Snakemake's logger plugin ``rich`` draws bars only on terminals; into a file or pipe it writes only failures.
"""

import logging
import sys
import time
from logging import Handler, LogRecord

from snakemake_interface_logger_plugins.common import LogEvent

from dpsweep.base.units import duration

_LINES = 10


def start() -> None:
    """Write the progress of this call of Snakemake if no terminal shows bars, except with ``--touch``."""
    if not sys.stderr.isatty() and not {"--touch", "-t"} & set(sys.argv):
        logging.getLogger().addHandler(Tenths())


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
