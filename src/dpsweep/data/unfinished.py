"""Folders and arrays of interrupted work that can be resumed, and the display of progress."""

import contextlib
import logging
import math
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import psutil

from dpsweep.base.files import read_json, write_json
from dpsweep.data.prepared import DatasetError

log = logging.getLogger(__name__)

# Work on another machine counts as killed if it has not written for this time.
_ABANDONED_SECONDS = 1800
_SECONDS_BETWEEN_LINES = 10


# -- folders ---------------------------------------------------------------------------------


def claim(parent: Path) -> Path:
    """Return a folder in ``parent`` that no other process uses.

    The name of a folder contains the host and process of its owner. If an owner has ended, its folder is
    taken over with its content, by renaming it: only one process can succeed.
    """
    own = parent / f"{socket.gethostname()}-{os.getpid()}"
    own.mkdir(parents=True, exist_ok=True)
    for folder in sorted(parent.iterdir()):
        with contextlib.suppress(OSError):  # the folder was released, or another process was faster
            if folder != own and _is_abandoned(folder):
                folder.rename(own)
                return own
    return own


def release(folder: Path) -> None:
    """Remove a claimed folder, and its parent if it is empty."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()


def _is_abandoned(folder: Path) -> bool:
    host, _, process = folder.name.rpartition("-")
    if host == socket.gethostname() and process.isdecimal():
        return not psutil.pid_exists(int(process))
    last_change = max(each.stat().st_mtime for each in (folder, *folder.iterdir()))
    return time.time() - last_change > _ABANDONED_SECONDS


# -- arrays ----------------------------------------------------------------------------------


class UnfinishedArray:
    """A .npy file that is written in blocks of rows, and that another process can continue.

    It consists of two files::

        <name>.npy     the rows so far, after the header of an empty array
        <name>.json    identity of the content, number of examples done, corrupt examples

    The second file is replaced after every block. A killed process loses at most its last block: the next
    process cuts off rows that the second file does not count, and continues there.

    Args:
        path: of the array.
        dtype: of its rows.
        shape: of a row.
        examples: number of all examples, including corrupt ones.
        identity: of the content; a different identity starts from zero.
    """

    def __init__(
        self, path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], examples: int, identity: str
    ) -> None:
        self._path, self._dtype, self._shape, self._identity = path, dtype, shape, identity
        self._examples, self._record = examples, path.with_suffix(".json")
        self.done = 0
        """Number of examples that were read."""
        self.corrupt: list[tuple[int, str]] = []
        """Positions of corrupt examples, which have no row, and their errors."""
        with contextlib.suppress(FileNotFoundError, ValueError, KeyError):
            found = read_json(self._record)
            if found["identity"] == identity and path.exists():
                log.info("%s: resuming after %d examples", path.stem, found["done"])
                self.done = found["done"]
                self.corrupt = [(place, what) for place, what in found.get("corrupt", [])]

    @contextmanager
    def writing(self, what: str) -> Iterator[None]:
        """Open the file for `append`, and write the header with the number of rows at the end.

        Args:
            what: noun for the rows, for messages.

        Raises:
            DatasetError: the disk is too small for the rows.
        """
        row_bytes = math.prod(self._shape) * self._dtype.itemsize
        require_space(self._path.parent, (self._examples - self.done) * row_bytes, what)
        named = f"{self._path.stem} {what}"
        with (
            self._path.open("r+b" if self.done else "w+b") as self._stream,
            progress(named, self.done, self._examples) as self._advance,
        ):
            self._write_header(0)
            self._stream.seek((self.done - len(self.corrupt)) * row_bytes, os.SEEK_CUR)
            self._stream.truncate()
            yield
            self._stream.seek(0)
            self._write_header(self.done - len(self.corrupt))
            self._sync()

    def append(self, block: Sequence[npt.NDArray[Any] | str]) -> None:
        """Write the rows of a block, and record the progress.

        Args:
            block: for each example its row or its error.
        """
        for place, row in enumerate(block, start=self.done):
            if isinstance(row, str):
                self.corrupt.append((place, row))
            else:
                self._stream.write(row.data)
        self.done += len(block)
        self._sync()
        record = {"identity": self._identity, "done": self.done, "corrupt": self.corrupt}
        write_json(self._record, record)
        self._advance(len(block))

    def _write_header(self, rows: int) -> None:
        # The header has spare room, so it can be replaced when the number of rows is known.
        write_array_header(self._stream, self._dtype, (rows, *self._shape))

    def _sync(self) -> None:
        """Force everything written to disk."""
        self._stream.flush()
        os.fsync(self._stream.fileno())


def write_array_header(stream: BinaryIO, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Write the header of a .npy file; its length does not depend on the number of rows."""
    descr = np.lib.format.dtype_to_descr(dtype)
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)


def require_space(folder: Path, needed: int, what: str) -> None:
    """Refuse files that do not fit on the disk.

    Args:
        folder: on the disk.
        needed: bytes.
        what: noun for the files, for the message.

    Raises:
        DatasetError: too few bytes are free.
    """
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DatasetError(
            f"{folder}: {needed / 1e9:.1f} GB are needed for the {what}, {free / 1e9:.1f} GB are "
            "free on that disk; make room, or set results to a folder on another one"
        )


# -- progress --------------------------------------------------------------------------------


@contextmanager
def progress(what: str, done: int, total: int) -> Iterator[Callable[[int], None]]:
    """Yield a function to call with the number of newly finished examples.

    It shows a progress bar on a terminal, and otherwise logs a line every ten seconds.

    Args:
        what: noun for the examples.
        done: number of examples that are already done.
        total: number of all examples.
    """
    if sys.stderr.isatty():
        from rich.console import Console  # noqa: PLC0415
        from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn  # noqa: PLC0415

        console = Console(stderr=True)
        columns = *Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn()
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(what, completed=done, total=total)
            yield lambda count: bar.advance(task, count)
        return
    started = spoken = time.monotonic()
    start = done

    def advance(count: int) -> None:
        nonlocal done, spoken
        done += count
        now = time.monotonic()
        if now - spoken > _SECONDS_BETWEEN_LINES:
            spoken = now
            rate = (done - start) / (now - started)
            log.info(
                "%s: %d of %d, %.0f a second, %.0f s left",
                what, done, total, rate, (total - done) / rate,
            )  # fmt: skip

    yield advance
