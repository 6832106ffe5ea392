"""The progress of a run without a terminal: a line for every tenth of the jobs.

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
    """A handler that writes the number of finished jobs and the remaining time to standard error."""

    def __init__(self) -> None:
        super().__init__()
        self._began = time.monotonic()
        self._written = 0

    def emit(self, record: LogRecord) -> None:
        """Write a line if a progress message of Snakemake completes another tenth."""
        if getattr(record, "event", None) != LogEvent.PROGRESS:
            return
        done, total = int(record.done), int(record.total)  # type: ignore[attr-defined]
        tenth = _LINES * done // max(total, 1)
        if tenth <= self._written:
            return
        self._written = tenth
        spent = time.monotonic() - self._began
        left = f", about {duration(spent / done * (total - done))} left" if done < total else ""
        sys.stderr.write(
            f"{time.strftime('%H:%M:%S')} {done} of {total} jobs ({done / total:.0%}), "
            f"{duration(spent)} spent{left}\n"
        )
        sys.stderr.flush()
