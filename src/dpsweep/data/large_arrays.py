"""Large .npy files, written block by block, and the display of their progress."""

import logging
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from dpsweep.data.prepared import DatasetError

log = logging.getLogger(__name__)

_SECONDS_BETWEEN_LINES = 10


def write_rows(
    path: Path,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    examples: int,
    blocks: Iterable[Sequence[npt.NDArray[Any] | str]],
    what: str,
) -> dict[int, str]:
    """Write an array of rows; examples that have an error instead of a row are left out.

    Args:
        path: of the .npy file.
        dtype: of its rows.
        shape: of a row.
        examples: number of all examples.
        blocks: for each example its row or its error, in order.
        what: noun for the rows, for messages.

    Returns:
        The errors by position.

    Raises:
        DatasetError: the disk is too small, or the blocks have another number of examples.
    """
    require_space(path.parent, examples * math.prod(shape) * dtype.itemsize, what)
    errors: dict[int, str] = {}
    done = 0
    with path.open("wb") as stream, progress(f"{path.stem} {what}", examples) as advance:
        write_array_header(stream, dtype, (0, *shape))
        for block in blocks:
            for place, row in enumerate(block, start=done):
                if isinstance(row, str):
                    errors[place] = row
                else:
                    stream.write(row.data)
            done += len(block)
            advance(len(block))
        if done != examples:
            raise DatasetError(f"{path.stem}: {done} {what} for {examples} labels")
        # The header has spare room, so it can be replaced when the number of rows is known.
        stream.seek(0)
        write_array_header(stream, dtype, (done - len(errors), *shape))
        stream.flush()
        os.fsync(stream.fileno())
    return errors


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


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yield a function to call with the number of newly finished examples.

    It shows a progress bar on a terminal, and otherwise logs a line every ten seconds.

    Args:
        what: noun for the examples.
        total: number of all examples.
    """
    if sys.stderr.isatty():
        from rich.console import Console  # noqa: PLC0415
        from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn  # noqa: PLC0415

        console = Console(stderr=True)
        columns = *Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn()
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(what, total=total)
            yield lambda count: bar.advance(task, count)
        return
    started = spoken = time.monotonic()
    done = 0

    def advance(count: int) -> None:
        nonlocal done, spoken
        done += count
        now = time.monotonic()
        if now - spoken > _SECONDS_BETWEEN_LINES:
            spoken = now
            rate = done / (now - started)
            log.info(
                "%s: %d of %d, %.0f a second, %.0f s left",
                what, done, total, rate, (total - done) / rate,
            )  # fmt: skip

    yield advance
