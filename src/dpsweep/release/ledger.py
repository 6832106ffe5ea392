"""The ledger of releases: a file that only grows, beside the results of a study.

Each model that is released on the same data spends epsilon of its own, and the best of several shows
more than any one of them. So each release adds a line, and names in its certificate those that were
there before. Moving a release away changes nothing of that. Nothing stops somebody who deletes the
ledger, or copies the data to where no ledger lies.

A line holds a checksum of the data, which is not private: keep the ledger to yourself.

A call writes its line, syncs it to the disk, and then moves its folder to where it belongs. So half a
line, which a power cut leaves, is that of a call that made no model.
"""

import fcntl
import json
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from pydantic import BaseModel, ConfigDict, ValidationError

from dpsweep.base.files import DamagedFileError, checked, require_file, with_fingerprint
from dpsweep.config.datasets import Origins, overlap
from dpsweep.privacy.record import mistakes
from dpsweep.release import ReleaseError
from dpsweep.release.certificate import Certificate, ReleasedModel
from dpsweep.release.untrusted import unique_keys

log = logging.getLogger(__name__)


class LedgerEntry(BaseModel):
    """One release."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    data: str
    """Checksum of the prepared dataset."""
    origins: Origins
    """Where its examples come from."""
    model: ReleasedModel
    day: str = ""
    """On which it was made, in UTC; older lines have none."""
    previous: str
    """Fingerprint of the line before; empty in the first one."""


class Ledger:
    """The releases that were made so far, while nobody else adds one; see `open_ledger`.

    Args:
        file: lines of JSON, each with a fingerprint of it. The last one may lack its end: a whole entry
            without a line break counts, and half an entry does not.

    Raises:
        ReleaseError: a line was edited, damaged or taken out, or the file cannot be read.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lines: list[LedgerEntry] = []
        self._head = ""
        try:
            require_file(file)
            written = file.read_bytes() if file.exists() else b""
        except OSError as error:
            raise ReleaseError(f"{file}: cannot be read: {error.strerror}") from None
        *whole, rest = written.split(b"\n")
        for number, content in enumerate(whole, start=1):
            self._read(f"{file}: line {number}", content)
        self._unfinished = rest if rest and not _is_entry(rest) else b""
        self._needs_end = bool(rest) and not self._unfinished
        if self._needs_end:
            self._read(f"{file}: line {len(whole) + 1}", rest)

    def _read(self, where: str, content: bytes) -> None:
        """Add the entries of a line: several, where an older version went on without a line break."""
        try:
            entries = list(_entries(content))
            for read in entries:
                line = LedgerEntry.model_validate(checked(Path(where), read))
                if line.previous != self._head:
                    raise ReleaseError(
                        f"{where}: found one that follows {line.previous or 'no other'}, expected one "
                        f"that follows {self._head or 'no other'}; a line was edited or taken out"
                    )
                self._lines.append(line)
                self._head = read["fingerprint"]
        except DamagedFileError as error:
            raise ReleaseError(str(error)) from None
        except ValidationError as error:
            raise ReleaseError(f"{where}: damaged: {'; '.join(mistakes(error))}") from None
        except ValueError as error:
            raise ReleaseError(f"{where}: damaged: {error}") from None

    def repair(self) -> None:
        """End the last line; move half an entry to a file beside the ledger, so that nothing is lost."""
        if self._needs_end:
            log.warning("%s: ended its last line", self._file)
            _append(self._file, b"\n")
        elif self._unfinished:
            aside = self._file.with_name(f"{self._file.name}.unfinished")
            log.warning(
                "%s: ends in half a line, of a call that was killed before its model was there; moved "
                "it to %s",
                *(self._file, aside),
            )
            _append(aside, self._unfinished + b"\n")
            os.truncate(self._file, self._file.stat().st_size - len(self._unfinished))
        self._needs_end, self._unfinished = False, b""

    def released(self, data: str, origins: Origins) -> list[ReleasedModel]:
        """The models that were released on some data, oldest first.

        Args:
            data: its checksum.
            origins: where its examples come from; others that may hold the same examples count too.
        """
        return [line.model for line in self.lines_of(data, origins)]

    def lines_of(self, data: str, origins: Origins) -> list[LedgerEntry]:
        """The lines of these models; see `released`."""
        return _lines_of(self._lines, data, origins)

    def line_of(self, certificate: str) -> LedgerEntry | None:
        """The line of a certificate, by its fingerprint."""
        return next((each for each in self._lines if each.model.certificate == certificate), None)

    def before(self, line: LedgerEntry) -> list[ReleasedModel]:
        """The models that were released, before one was, on data that may share examples with its."""
        earlier = self._lines[: self._lines.index(line)]
        return [each.model for each in _lines_of(earlier, line.data, line.origins)]

    def add(self, data: str, origins: Origins, model: ReleasedModel) -> None:
        """Add a line; see `LedgerEntry`."""
        day = datetime.now(UTC).date().isoformat()
        line = LedgerEntry(data=data, origins=origins, model=model, day=day, previous=self._head)
        content = with_fingerprint(line.model_dump(mode="json"))
        _append(self._file, json.dumps(content).encode() + b"\n")
        self._lines.append(line)
        self._head = content["fingerprint"]


def _lines_of(lines: Sequence[LedgerEntry], data: str, origins: Origins) -> list[LedgerEntry]:
    return [line for line in lines if line.data == data or overlap(line.origins, origins)]


def _append(file: Path, written: bytes) -> None:
    with file.open("ab") as stream:
        stream.write(written)
        stream.flush()
        os.fsync(stream.fileno())


def _entries(content: bytes) -> Iterator[Any]:
    """Parse what stands on a line, one JSON value after the other."""
    text, place = content.decode("utf-8"), 0
    decoder = json.JSONDecoder(object_pairs_hook=unique_keys)
    while place < len(text):
        try:
            read, place = decoder.raw_decode(text, place)
        except RecursionError:
            raise ValueError("found brackets within brackets") from None
        yield read


def _is_entry(content: bytes) -> bool:
    try:
        return bool(list(_entries(content)))
    except ValueError:
        return False


def ledger_mistakes(certificate: Certificate, own: str, ledger: Ledger) -> Iterator[str]:
    """Compare a certificate with its line of a ledger, and with the lines before.

    Args:
        certificate: as it was read.
        own: its fingerprint.
        ledger: what was released where the model was made.
    """
    line = ledger.line_of(own)
    if line is None:
        yield (
            "the ledger has no line of this certificate, which was forged or made elsewhere; allowed: the "
            "ledger of where it was made (--ledger FILE), or none (--no-ledger)"
        )
        return
    noise = None if certificate.tuning else certificate.noise
    stated = ReleasedModel(
        certificate=own, epsilon=certificate.epsilon, delta=certificate.delta, noise=noise
    )
    if line.model != stated:
        yield "the ledger has another epsilon, delta or noise for this certificate"
    expected, found = ledger.before(line), certificate.releases.earlier
    if found != expected:
        yield (
            f"releases.earlier: found {len(found)} models, expected the {len(expected)} that the ledger "
            "names before, in its order and with their fingerprints"
        )


@contextmanager
def open_ledger(file: Path) -> Iterator[Ledger]:
    """Read a ledger; until the end of this context other calls wait before they read it.

    Raises:
        ReleaseError: see `Ledger`.
        OSError: the file cannot be written.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with locked(file, "another call adds to the ledger"):
        ledger = Ledger(file)
        ledger.repair()
        yield ledger


def locked(path: Path, waiting: str) -> TextIO:
    """Open a file for as long as this process alone may hold its lock; close it to let go.

    A call waits until nobody else holds it, on any machine that shares the disk. A file that the one
    who held it has removed is made anew.

    Args:
        path: the file, which is made where it is missing.
        waiting: what is logged while another one holds it.

    Raises:
        OSError: it cannot be written, or is no file.
    """
    while True:
        require_file(path)
        lock = path.open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.warning("%s; waiting for its end", waiting)
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:  # some network file systems have no locks
            log.warning("%s: no lock (%s); start no other release beside this one", path, error)
            return lock
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock.fileno()), path.stat()):
                return lock
        lock.close()
