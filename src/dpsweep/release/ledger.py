"""The ledger of releases: a file that only grows, beside the results of a study.

Each model that is released on the same data spends epsilon of its own, and the best of several shows
more than any one of them. So each release adds a line, and names in its certificate those that were
there before. Moving a release away changes nothing of that. Nothing stops somebody who deletes the
ledger, or copies the data to where no ledger lies.

A line holds a checksum of the data, which is not private: keep the ledger to yourself.
"""

import fcntl
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from pydantic import BaseModel, ConfigDict

from dpsweep.base.files import DamagedFileError, checked, with_fingerprint
from dpsweep.release import ReleaseError
from dpsweep.release.certificate import ReleasedModel
from dpsweep.study.config.datasets import Origins, overlap

log = logging.getLogger(__name__)


class LedgerEntry(BaseModel):
    """One release."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    data: str
    """Checksum of the prepared dataset."""
    origins: Origins
    """Where its examples come from."""
    model: ReleasedModel
    previous: str
    """Fingerprint of the line before; empty in the first one."""


class Ledger:
    """The releases that were made so far, while nobody else adds one; see `open_ledger`.

    Args:
        file: lines of JSON, each with a fingerprint of it.

    Raises:
        ReleaseError: a line was edited, damaged or taken out.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lines: list[LedgerEntry] = []
        self._head = ""
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        for number, content in enumerate(text.splitlines(), start=1):
            where = f"{file}: line {number}"
            try:
                read = json.loads(content)
                line = LedgerEntry.model_validate(checked(Path(where), read))
            except DamagedFileError as error:
                raise ReleaseError(str(error)) from None
            except ValueError as error:
                raise ReleaseError(f"{where}: damaged: {error}") from None
            if line.previous != self._head:
                raise ReleaseError(
                    f"{where}: found one that follows {line.previous or 'no other'}, expected one that "
                    f"follows {self._head or 'no other'}; a line was edited or taken out"
                )
            self._lines.append(line)
            self._head = read["fingerprint"]

    def released(self, data: str, origins: Origins) -> list[ReleasedModel]:
        """The models that were released on some data, oldest first.

        Args:
            data: its checksum.
            origins: where its examples come from; others that may hold the same examples count too.
        """
        return [
            line.model
            for line in self._lines
            if line.data == data or overlap(line.origins, origins)
        ]

    def add(self, data: str, origins: Origins, model: ReleasedModel) -> None:
        """Add a line; see `LedgerEntry`."""
        line = LedgerEntry(data=data, origins=origins, model=model, previous=self._head)
        content = with_fingerprint(line.model_dump(mode="json"))
        with self._file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(content) + "\n")
            stream.flush()
            os.fsync(stream.fileno())
        self._lines.append(line)
        self._head = content["fingerprint"]


@contextmanager
def open_ledger(file: Path) -> Iterator[Ledger]:
    """Read a ledger; until the end of this context other calls wait before they read it.

    Raises:
        ReleaseError: see `Ledger`.
        OSError: the file cannot be written.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with locked(file, "another call adds to the ledger"):
        yield Ledger(file)


def locked(path: Path, waiting: str) -> TextIO:
    """Open a file for as long as this process alone may hold its lock; close it to let go.

    A call waits until nobody else holds it, on any machine that shares the disk. A file that the one
    who held it has removed is made anew.

    Args:
        path: the file, which is made where it is missing.
        waiting: what is logged while another one holds it.
    """
    while True:
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
