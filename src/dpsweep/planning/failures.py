"""Jobs that ended without their output, and the last error of their logs."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpsweep.config.messages import group_by_message, shorten

# The beginnings of dpsweep's own errors, and of the last part of a traceback.
_OWN_ERROR = re.compile(r"error: ")
_EXCEPTION = re.compile(r"(\w+\.)*\w*(Error|Exception)(: |$)")
STOPPED = re.compile(r"stopped by \w+, exit status \d+")
"""The last line of a job that was ended by a signal (`dpsweep.training.job`)."""
# A log line with a time: the job went on after all earlier lines.
_LOGGED = re.compile(r"\d\d:\d\d:\d\d ")
ENDED = "trials trained now"
"""Words in the last line of the log of a finished cell (`dpsweep.training.cell`)."""
_TAIL_BYTES = 65_536


@dataclass(frozen=True)
class Failure:
    """A job without output: its log, and why it ended."""

    name: str
    log: Path
    reason: str
    """the error at the end of the log, or its last line"""

    @classmethod
    def of(cls, name: str, log: Path) -> "Failure":
        """Read the reason of a job from its log."""
        lines = tail(log)
        if error := error_lines(lines):
            return cls(name, log, "\n".join(error).removeprefix("error: "))
        # Slurm, or the system, killed it: its output has the reason.
        return cls(
            name, log, f"it ended without an error, after: {lines[-1] if lines else 'nothing'}"
        )


def tail(log: Path) -> list[str]:
    """Return the last lines of a log; none if there is no log."""
    try:
        with log.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(max(0, size - _TAIL_BYTES))
            return stream.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return []


def error_lines(lines: list[str]) -> list[str]:
    """Return the error at the end of a log, or no lines if the log does not end with one."""
    logged = (number for number, line in enumerate(lines, start=1) if _LOGGED.match(line))
    end = lines[max(logged, default=0) :]
    # dpsweep's own error comes last, and can quote an exception.
    for pattern in (_OWN_ERROR, _EXCEPTION):
        for number in reversed(range(len(end))):
            if pattern.match(end[number]):
                return end[number:]
    return []


def summary(failures: Sequence[Failure]) -> Iterator[str]:
    """Yield every reason with the jobs that have it, and the log of the first."""
    logs = {each.name: each.log for each in failures}
    for reason, names in group_by_message((each.name, each.reason) for each in failures).items():
        yield f"{shorten(names)}:"
        yield from (f"  {line}" for line in reason.splitlines())
        yield f"  log: {logs[names[0]]}"
    yield f"{len(failures)} failed or stopped. The same command again runs just what is missing."
