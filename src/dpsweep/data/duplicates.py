"""Test examples with the inputs of a training example. They do not measure accuracy on unseen data."""

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
"""One 64-bit hash for each row. With a million training and 100,000 test examples, different rows get
the same hash in one of 10^8 datasets."""


def hash_rows(rows: npt.NDArray[np.generic]) -> Hashes:
    """Return a hash of the bytes of each row of an array."""
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
    """Return ``"test name = training name"`` for each test example with the input of a training example.

    Args:
        train: hashes of the training inputs.
        test: hashes of the test inputs.
        name: returns the name of the training example at a position.
        test_name: the same for test examples.
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
    """Warn of duplicates, or refuse them.

    Args:
        name: of the dataset.
        kind: of data.
        duplicates: the result of `find_duplicates`.
        test_size: number of test examples.
        refuse: whether duplicates are an error.

    Raises:
        DatasetError: there are duplicates, and they are an error.
    """
    if not duplicates:
        return
    found = (
        f"{len(duplicates)} of {test_size} test examples have the {KINDS[kind].same} of a training example, "
        f"so they do not measure accuracy on unseen data: {shorten(duplicates)}"
    )
    if refuse:
        raise DatasetError(
            f"datasets.{name}: {found}\nRemove one of both, or set duplicates: warn to use them"
        )
    log.warning("%s: %s", name, found)
