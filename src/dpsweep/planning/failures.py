"""Why jobs failed: the error that a log ends with, and what the scheduler said of the job's end.

A job's log is the one place that tells its end. What the job itself cannot write, because it was
never started or was killed, is added by `note`.
"""

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpsweep.base.units import duration

# How the command line's own errors start, and the last part of a traceback. Both may go on for
# more lines: hints of ours, a CUDA error's advice.
_OWN_ERROR = re.compile(r"error: ")
_EXCEPTION = re.compile(r"(\w+\.)*\w*(Error|Exception)(: |$)")
# How a job says that it was told to end (`dpsweep.training.job`).
STOPPED = re.compile(r"stopped by \w+, exit status \d+")
# What was added after the job's end.
_NOTE = "ended: "
# A line of a job's own log: whatever comes before it did not end the job.
_LOGGED = re.compile(r"\d\d:\d\d:\d\d ")
_TAIL_BYTES = 65_536
_REASON_LINES = 12
# Of the lines that are no known kind of error ("command not found"), the last ones.
_UNKNOWN_LINES = 3
_NAMES = 5

# Notes that could not be written, for example to a full disk.
_unwritten: dict[Path, str] = {}


@dataclass(frozen=True)
class Failure:
    """A job that left no output: where its log is, and why it ended."""

    name: str
    log: Path
    reason: str
    is_error: bool
    """False where the job was stopped, or left no message"""


def note(log: Path, words: str) -> None:
    """Add to a job's log how the job ended, in the words of who ended it."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a+b") as stream:
            if stream.tell():
                stream.seek(-1, 2)
                unfinished = stream.read() != b"\n"
                stream.write(b"\n" if unfinished else b"")
            stream.write(f"{_NOTE}{words}\n".encode())
    except OSError as error:
        _unwritten[log] = f"{words}\n(this could not be written to the log: {error.strerror})"


def failure(outputs: Sequence[str | Path], logs: Sequence[str | Path], rule: str) -> Failure:
    """Describe a job of a run that has just failed.

    Args:
        outputs: the files that it should have made; a cell is named after itself.
        logs: its logs; the first one counts.
        rule: its kind, for a job without outputs.
    """
    name = str(outputs[0]) if outputs else rule
    parts = Path(name).parts
    if parts[-4:-3] == ("cells",):  # .../cells/<problem>/<cell>/trials.parquet
        name = "/".join(parts[-3:-1])
    return describe(name, Path(logs[0]) if logs else Path("no log"))


def describe(name: str, log: Path, now: float | None = None) -> Failure:
    """Say why a job ended without its output, from its log.

    Args:
        name: the job.
        log: its log.
        now: the time to compare the log with; by default the present.
    """
    lines = tail(log)
    if (error := error_lines(lines)) or log in _unwritten:
        return Failure(name, log, _shortened([*error, *_unwritten.get(log, "").splitlines()]), True)
    if lines and (stopped := STOPPED.search(lines[-1])):
        return Failure(name, log, f"{stopped[0]}: its state is saved, and it goes on", False)
    if not log.exists():
        return Failure(name, log, "no message: it was killed before it wrote its log", False)
    silence = duration(max(0.0, (time.time() if now is None else now) - log.stat().st_mtime))
    reason = f"no message, nothing written for {silence}: killed (memory, time limit, kill -9)"
    return Failure(name, log, reason, False)


def tail(log: Path) -> list[str]:
    """The last lines of a log; none where there is no log."""
    try:
        with log.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(max(0, size - _TAIL_BYTES))
            return stream.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return []


def error_lines(lines: list[str]) -> list[str]:
    """Those of a log's last lines that tell of an error: none if it ends otherwise."""
    logged = (number for number, line in enumerate(lines, start=1) if _LOGGED.match(line))
    end = lines[max(logged, default=0) :]
    noted = next((n for n, line in enumerate(end) if line.startswith(_NOTE)), len(end))
    # Our own error is the last word of a job, and may quote an exception.
    for pattern in (_OWN_ERROR, _EXCEPTION):
        for number in reversed(range(noted)):
            if pattern.match(end[number]):
                return end[number:]
    return end[max(0, noted - _UNKNOWN_LINES) :] if noted < len(end) else []


def summary(failures: Iterable[Failure], again: str, waiting: int = 0) -> Iterator[str]:
    """The list of failures that a run ends with; those with the same reason are grouped.

    Args:
        failures: the jobs that failed or were stopped.
        again: the command that runs what is missing.
        waiting: how many jobs were not started, most of them because they need failed ones.
    """
    alike: dict[str, list[Failure]] = {}
    for each in failures:
        # The same reason but for numbers (of jobs, times, sizes).
        alike.setdefault(re.sub(r"\d+", "#", each.reason), []).append(each)
    for group in alike.values():
        yield from (each.name for each in group[:_NAMES])
        if len(group) > _NAMES:
            yield f"... and {len(group) - _NAMES} more with the same reason"
        yield from (f"  {line}" for line in group[0].reason.splitlines())
        yield from (f"  log: {each.log}" for each in group[:_NAMES])
    listed = [each.is_error for group in alike.values() for each in group]
    counts = {"failed": sum(listed), "stopped": len(listed) - sum(listed), "not started": waiting}
    said = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    ended = (
        said if listed else ", ".join(filter(None, ["the run was stopped before its end", said]))
    )
    yield f"{ended}. This runs just what is missing:"
    yield f"  {again}"


def _shortened(lines: list[str]) -> str:
    """An error as text, shortened to some lines."""
    if len(lines) > _REASON_LINES:
        lines = [*lines[: _REASON_LINES - 1], "..."]
    return "\n".join(line.removeprefix("error: ").removeprefix(_NOTE) for line in lines)
