"""Record what each output was made from, and tell whether that is still so.

Every job leaves one small JSON file: a hash of what its output was made for (settings of the study
and checksums of the files that it read), and the checksums of the files that it wrote. An output is
*current* when its files are those that were written, and were made for the study and the inputs of
today. That does not depend on times of writing or on Snakemake's memory, so it holds after a
crash, a deletion, an edit by hand, or a copy from a backup.
"""

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from dpsweep.base.files import checksum, fingerprint, write_text
from dpsweep.planning.outputs import Output
from dpsweep.study.paths import SET_ASIDE, Paths


@dataclass(frozen=True)
class WrittenFile:
    """A file as a job left it."""

    checksum: str
    size: int
    modified: int
    """time of writing, in ns"""

    @classmethod
    def of(cls, path: Path) -> "WrittenFile":
        """Look at a file."""
        state = path.stat()
        return cls(checksum(path), state.st_size, state.st_mtime_ns)

    def is_at(self, path: Path) -> bool:
        """Whether a file is this one. It is read only where its time of writing is another.

        Raises:
            FileNotFoundError: there is no file.
        """
        state = path.stat()
        if state.st_size != self.size:
            return False
        return state.st_mtime_ns == self.modified or checksum(path) == self.checksum


@dataclass(frozen=True)
class Provenance:
    """Record of an output, written by its job."""

    made_for: str | None = None
    """hash of settings and inputs; None while the job is not done"""
    files: dict[str, WrittenFile] = field(default_factory=dict)
    """by name"""
    timing: dict[str, Any] = field(default_factory=dict)
    """what it took, for jobs that train"""


_JSON = TypeAdapter(Provenance)


def read_provenance(paths: Paths, output: str) -> Provenance:
    """Read what a job has said of an output, by name; nothing where it said nothing, or it is damaged."""
    try:
        return _JSON.validate_json(paths.provenance(output).read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValidationError):
        return Provenance()


def write_provenance(paths: Paths, output: Output, provenance: Provenance) -> None:
    """Write what a job says of an output, atomically."""
    write_text(paths.provenance(output.name), _JSON.dump_json(provenance).decode() + "\n")


class Making:
    """A job that is making an output."""

    def __init__(self, paths: Paths, output: Output) -> None:
        self._paths, self._output = paths, output
        self.timing = read_provenance(paths, output.name).timing

    def note(self, timing: Mapping[str, Any]) -> None:
        """Say what the output has taken so far."""
        self.timing = dict(timing)
        write_provenance(self._paths, self._output, Provenance(timing=self.timing))


@contextmanager
def making(paths: Paths, output: Output) -> Iterator[Making]:
    """Make an output inside the block, and say at its end what it was made from.

    Settings, which tell the state of local files, and inputs are looked at before the block: whatever
    changes them later makes the output outdated.
    """
    settings = output.settings()
    inputs = {file: _checksum(paths, file) for file in output.inputs}
    job = Making(paths, output)
    # What it was is over, whether or not the job gets to its end; what it has cost is not.
    job.note(job.timing)
    yield job
    files = {file.name: WrittenFile.of(file) for file in output.files}
    made_for = _made_for(paths, settings, inputs)
    write_provenance(paths, output, Provenance(made_for, files, job.timing))


@dataclass(frozen=True)
class NotCurrent:
    """Why an output is not current."""

    kind: Literal["missing", "changed", "outdated", "inputs"]
    """a file is missing; was changed since; was made for something else; an input is not current"""
    text: str


def clear_the_way(paths: Paths, outputs: Iterable[Output]) -> Iterator[str]:
    """Set aside what stands in the place of a file: a folder, a dangling link, a device.

    What holds nothing is removed; a folder with content, and a file in the place of a folder, get
    another name.

    Args:
        paths: the study's files.
        outputs: whose files, and whose provenance.

    Yields:
        A line for everything that was in the way.
    """
    for output in outputs:
        for file in (*output.files, paths.provenance(output.name)):
            try:
                mode = file.lstat().st_mode
            except FileNotFoundError:
                continue
            except NotADirectoryError:
                blocking = next(each for each in file.parents if each.is_file())
                yield _set_aside(blocking, "a file in the place of a folder")
                continue
            if stat.S_ISREG(mode) or (stat.S_ISLNK(mode) and file.is_file()):
                continue
            if stat.S_ISDIR(mode) and any(file.iterdir()):
                yield _set_aside(file, "a folder in the place of a file")
            else:
                file.rmdir() if stat.S_ISDIR(mode) else file.unlink()
                yield f"{file}: removed an empty folder, a link without a file, or a device"


def _set_aside(place: Path, what: str) -> str:
    names = (place.with_name(f"{place.name}{SET_ASIDE}{number or ''}") for number in count())
    other = next(name for name in names if not os.path.lexists(name))
    place.rename(other)
    return f"{place}: found {what}; it is now {other}"


def not_current(
    paths: Paths,
    outputs: Iterable[Output],
    read: Callable[[Paths, str], Provenance] = read_provenance,
) -> dict[str, NotCurrent]:
    """Find the outputs that are not current, by name.

    Args:
        paths: the study's files.
        outputs: outputs, each after those that it is made from.
        read: what a job has said of an output; a caller may keep it.
    """
    found: dict[str, NotCurrent] = {}
    checksums: dict[Path, str] = {}
    for output in outputs:
        # Of a study that has just begun most is missing, and what was said of it need not be read.
        provenance = read(paths, output.name) if output.files[0].exists() else Provenance()
        why = _why_not_current(paths, output, provenance, checksums)
        if why is not None:
            found[output.name] = why
    return found


def explain(found: Mapping[str, NotCurrent]) -> list[str]:
    """A line for every output that is not current by itself, and one for what is made from these."""
    lines = [f"{name}: {each.text}" for name, each in found.items() if each.kind != "inputs"]
    rest = len(found) - len(lines)
    return [*lines, f"{rest} more that are made from these"] if rest else lines


def _why_not_current(
    paths: Paths, output: Output, provenance: Provenance, checksums: dict[Path, str]
) -> NotCurrent | None:
    """Look at one output; add the checksums of its files if it is current."""
    written: dict[Path, str] = {}
    for file in output.files:
        known = provenance.files.get(file.name)
        try:
            if known is not None and known.is_at(file):
                written[file] = known.checksum
                continue
            file.stat()
        except (FileNotFoundError, NotADirectoryError):
            return NotCurrent("missing", f"{file} is missing")
        if provenance.made_for is None or known is None:
            return NotCurrent(
                "outdated", f"{paths.provenance(output.name)} does not say what it is"
            )
        return NotCurrent("changed", f"{file} was changed since it was made")
    remade = next((file for file in output.inputs if file not in checksums), None)
    if remade is not None:
        return NotCurrent("inputs", f"{remade} is to be made again")
    inputs = {file: checksums[file] for file in output.inputs}
    if provenance.made_for != _made_for(paths, output.settings(), inputs):
        return NotCurrent("outdated", "was made for other settings or from other files")
    checksums |= written
    return None


def _made_for(paths: Paths, settings: str, inputs: Mapping[Path, str]) -> str:
    named = {_inside(paths.results, file): each for file, each in inputs.items()}
    return fingerprint({"settings": settings, "inputs": named})


@cache
def _inside(results: Path, file: Path) -> str:
    """The name of a file below the results; most inputs are those of many outputs."""
    return file.relative_to(results).as_posix()


def _checksum(paths: Paths, file: Path) -> str:
    """The checksum of an input; it is read only if it is not as its own job left it.

    It is empty where there is no such file: the job itself says what is missing and what to do.
    """
    if not file.exists():
        return ""
    known = read_provenance(paths, paths.output_name(file)).files.get(file.name)
    return known.checksum if known is not None and known.is_at(file) else checksum(file)
