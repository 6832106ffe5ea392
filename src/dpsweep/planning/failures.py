"""Why jobs failed: the error that a log ends with, or what Snakemake and Slurm say of the job's end.

What a job itself cannot write, because it was never started or was killed, is in the logs that Snakemake
keeps of its runs, and in those of Slurm's jobs that failed. Nobody is asked: files tell it all.
"""

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpsweep.base.units import duration

# How the command line's own errors start, and the last part of a traceback. Both may go on for
# more lines: hints of ours, a CUDA error's advice.
_OWN_ERROR = re.compile(r"error: ")
_EXCEPTION = re.compile(r"(\w+\.)*\w*(Error|Exception)(: |$)")
# How a job says that it was told to end (`dpsweep.training.job`).
STOPPED = re.compile(r"stopped by \w+, exit status \d+")
# What Snakemake's log of a run has of a job that failed. The executor's message may have several lines.
_FAILED = re.compile(
    r"^Error in (?:rule|group) .*\n    message: (?P<message>(?:.*\n)+?)    jobid: .*\n"
    r"(?:    (?:input|output): .*\n)*    log: (?P<logs>.*?)(?: \(check .*)?\n",
    re.MULTILINE,
)
# What the plugin for Slurm adds to every message, and its command.
_BOILERPLATE = re.compile(
    r"\s*(Detailed failure reason unavailable|For further error details|sbatch call:).*", re.DOTALL
)
# Slurm's own errors in the log of its job. That the command failed is not among them: its own log says why.
_SLURM_ERROR = re.compile(r"(?:slurmstepd|slurmd)\S*: (?:error|fatal): .*")
# A line of a job's own log: whatever comes before it did not end the job.
_LOGGED = re.compile(r"\d\d:\d\d:\d\d ")
ENDED = "trials trained now"
"""Words in the last line of the log of a finished cell (`dpsweep.training.cell`)."""
_TAIL_BYTES = 65_536
_REASON_LINES = 12
# Of the lines that are no known kind of error ("command not found"), the last ones.
_UNKNOWN_LINES = 3
_SLURM_LINES = 3
_NAMES = 5


@dataclass(frozen=True)
class Failure:
    """A job that left no output: where its log is, and why it ended."""

    name: str
    log: Path
    reason: str
    is_error: bool
    """False where the job was stopped, or left no message"""


def failure(outputs: Sequence[str | Path], logs: Sequence[str | Path], rule: str) -> Failure:
    """Describe a job of a run that has just failed.

    Args:
        outputs: the files that it should have made; a cell is named after itself.
        logs: its logs; the first one counts.
        rule: its kind, for a job without outputs.
    """
    name = str(outputs[0]) if outputs else rule
    parts = Path(name).parts
    if parts[-4:-3] == ("cells",):  # .../cells/<problem>/<cell>/trials-<made for>.parquet
        name = "/".join(parts[-3:-1])
    return describe(name, Path(logs[0]) if logs else Path("no log"))


def describe(
    name: str, log: Path, now: float | None = None, endings: Mapping[Path, str] | None = None
) -> Failure:
    """Say why a job ended without its output, from its log.

    Args:
        name: the job.
        log: its log.
        now: the time to compare the log with; by default the present.
        endings: what is known besides (`read_endings`).
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
        folder: of Snakemake, in which it keeps the logs of its runs.
    """
    endings = {}
    for run in sorted((folder / "log").glob("*.snakemake.log")):
        for failed in _FAILED.finditer(run.read_text(encoding="utf-8", errors="replace")):
            words = [_BOILERPLATE.sub("", failed["message"]).strip()]
            # The job's own log tells it; and the log of Slurm's job says so once more.
            if words == ["None"]:
                continue
            log, *others = (Path(each).absolute() for each in failed["logs"].split(", "))
            errors = (_SLURM_ERROR.match(line) for other in others for line in tail(other))
            words += list(dict.fromkeys(each[0] for each in errors if each))[:_SLURM_LINES]
            endings[log] = "\n".join(words)
    return endings


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
    # Our own error is the last word of a job, and may quote an exception.
    for pattern in (_OWN_ERROR, _EXCEPTION):
        for number in reversed(range(len(end))):
            if pattern.match(end[number]):
                return end[number:]
    return []


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
    return "\n".join(line.removeprefix("error: ") for line in lines)
