"""Reasons why jobs failed: the error at the end of a log, or the messages of Snakemake and Slurm.

A job that was never started or was killed cannot write its reason. It is in the logs that Snakemake keeps of
its runs, and in the logs of Slurm's failed jobs. All of this is read from files; Slurm is not queried.
"""

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpsweep.base.units import duration

# The beginnings of dpsweep's own errors, and of the last part of a traceback. Both can have more
# lines: hints, advice of a CUDA error.
_OWN_ERROR = re.compile(r"error: ")
_EXCEPTION = re.compile(r"(\w+\.)*\w*(Error|Exception)(: |$)")
# The last line of a job that was ended by a signal (`dpsweep.training.job`).
STOPPED = re.compile(r"stopped by \w+, exit status \d+")
# A failed job in Snakemake's log of a run. The executor's message can have several lines.
_FAILED = re.compile(
    r"^Error in (?:rule|group) .*\n    message: (?P<message>(?:.*\n)+?)    jobid: .*\n"
    r"(?:    (?:input|output): .*\n)*    log: (?P<logs>.*?)(?: \(check .*)?\n",
    re.MULTILINE,
)
# Text that the plugin for Slurm adds to every message, and its command.
_BOILERPLATE = re.compile(
    r"\s*(Detailed failure reason unavailable|For further error details|sbatch call:).*", re.DOTALL
)
# Slurm's own errors in the log of its job, without the failure of the command, which has its own log.
_SLURM_ERROR = re.compile(r"(?:slurmstepd|slurmd)\S*: (?:error|fatal): .*")
# A log line with a time: the job went on after all earlier lines.
_LOGGED = re.compile(r"\d\d:\d\d:\d\d ")
ENDED = "trials trained now"
"""Words in the last line of the log of a finished cell (`dpsweep.training.cell`)."""
_TAIL_BYTES = 65_536
_REASON_LINES = 12
# The number of last lines to show if none is a known kind of error ("command not found").
_UNKNOWN_LINES = 3
_SLURM_LINES = 3
_NAMES = 5


@dataclass(frozen=True)
class Failure:
    """A job without output: its log, and the reason why it ended."""

    name: str
    log: Path
    reason: str
    is_error: bool
    """False if the job was stopped, or left no message"""


def failure(outputs: Sequence[str | Path], logs: Sequence[str | Path], rule: str) -> Failure:
    """Describe a failed job of the present run.

    Args:
        outputs: the files that it should have made; they name the job.
        logs: its logs; only the first one is used.
        rule: its rule, the name of a job without outputs.
    """
    name = str(outputs[0]) if outputs else rule
    parts = Path(name).parts
    if parts[-4:-3] == ("cells",):  # .../cells/<problem>/<cell>/trials-<made for>.parquet
        name = "/".join(parts[-3:-1])
    return describe(name, Path(logs[0]) if logs else Path("no log"))


def describe(
    name: str, log: Path, now: float | None = None, endings: Mapping[Path, str] | None = None
) -> Failure:
    """Return the reason why a job ended without its output, from its log.

    Args:
        name: the job.
        log: its log.
        now: the time to compare the log with; by default the present.
        endings: messages of Snakemake and Slurm (`read_endings`).
    """
    lines = tail(log)
    if error := error_lines(lines):
        return Failure(name, log, _shortened(error), True)
    if lines and (stopped := STOPPED.search(lines[-1])):
        return Failure(name, log, f"{stopped[0]}: it keeps what is saved, and goes on", False)
    if said := (endings or {}).get(log.absolute()):
        return Failure(name, log, _shortened([*lines[-_UNKNOWN_LINES:], *said.splitlines()]), True)
    if not log.exists():
        return Failure(name, log, "no message: it was killed before it wrote its log", False)
    silence = duration(max(0.0, (time.time() if now is None else now) - log.stat().st_mtime))
    reason = f"no message, nothing written for {silence}: killed (memory, time limit, kill -9)"
    return Failure(name, log, reason, False)


def read_endings(folder: Path = Path(".snakemake")) -> dict[Path, str]:
    """Read the last message of Snakemake and Slurm about each failed job, by the log of the job.

    Args:
        folder: the folder with Snakemake's logs of its runs.
    """
    endings = {}
    for run in sorted((folder / "log").glob("*.snakemake.log")):
        for failed in _FAILED.finditer(run.read_text(encoding="utf-8", errors="replace")):
            words = [_BOILERPLATE.sub("", failed["message"]).strip()]
            # Without a message of the executor, the reason is in the job's own log.
            if words == ["None"]:
                continue
            log, *others = (Path(each).absolute() for each in failed["logs"].split(", "))
            errors = (_SLURM_ERROR.match(line) for other in others for line in tail(other))
            words += list(dict.fromkeys(each[0] for each in errors if each))[:_SLURM_LINES]
            endings[log] = "\n".join(words)
    return endings


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


def summary(failures: Iterable[Failure], again: str, waiting: int = 0) -> Iterator[str]:
    """Yield the list of failures at the end of a run, grouped by reason.

    Args:
        failures: the jobs that failed or were stopped.
        again: the command that runs the missing jobs.
        waiting: the number of jobs that were not started, most of them because they need failed ones.
    """
    alike: dict[str, list[Failure]] = {}
    for each in failures:
        # Reasons that differ only in numbers (jobs, times, sizes) are the same.
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
    """Return an error as text, shortened to some lines."""
    if len(lines) > _REASON_LINES:
        lines = [*lines[: _REASON_LINES - 1], "..."]
    return "\n".join(line.removeprefix("error: ") for line in lines)
