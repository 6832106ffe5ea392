"""Test examples whose inputs are those of a training example: they tell nothing of unseen ones."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from dpsweep.config.datasets import KINDS
from dpsweep.config.messages import shorten
from dpsweep.data.prepared import DatasetError

log = logging.getLogger(__name__)

Hashes = npt.NDArray[np.uint64]
"""One for each row. Two of 64 bits agree by chance once in 10^8 datasets of a million examples and 100,000
for testing."""


def hash_rows(rows: npt.NDArray[np.generic]) -> Hashes:
    """Return a hash of each row of an array, of its bytes."""
    return np.array([xxhash.xxh3_64_intdigest(row.tobytes()) for row in rows], np.uint64)


def row_hashes(path: Path) -> Hashes:
    """Return a hash of each row of a .npy file."""
    mapped = np.load(path, mmap_mode="r")
    with path.open("rb") as stream:
        stream.seek(mapped.offset)
        rows = (xxhash.xxh3_64_intdigest(stream.read(mapped[0].nbytes)) for _ in range(len(mapped)))
        return np.fromiter(rows, np.uint64, len(mapped))


def find_duplicates(
    train: Hashes, test: Hashes, name: Callable[[int], str], test_name: Callable[[int], str]
) -> list[str]:
    """Name the test examples whose inputs are those of a training example, each with that one.

    Args:
        train: of the inputs for training.
        test: of those for testing.
        name: what the training example at a place is called.
        test_name: likewise.
    """
    hashes, first = np.unique(train, return_index=True)
    places = np.searchsorted(hashes, test).clip(max=len(hashes) - 1)
    return [
        f"{test_name(row)} = {name(int(first[places[row]]))}"
        for row in np.flatnonzero(hashes[places] == test).tolist()
    ]


def say_duplicates(
    name: str, kind: str, duplicates: Sequence[str], test_size: int, refuse: bool
) -> None:
    """Say how many there are, if there are any.

    Args:
        name: of the dataset.
        kind: of data.
        duplicates: what `find_duplicates` returns.
        test_size: all test examples.
        refuse: whether this is an error.

    Raises:
        DatasetError: it is.
    """
    if not duplicates:
        return
    found = (
        f"{len(duplicates)} of {test_size} test examples have the {KINDS[kind].same} of a training example, "
        f"and tell nothing of unseen ones: {shorten(duplicates)}"
    )
    if refuse:
        raise DatasetError(
            f"datasets.{name}: {found}\nRemove one of both, or set duplicates: warn to use them"
        )
    log.warning("%s: %s", name, found)
