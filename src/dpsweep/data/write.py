"""Writing of prepared datasets: arrays, checksums and duplicates, in a folder that appears whole."""

import hashlib
import logging
import math
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import xxhash

from dpsweep.base.files import atomic_folder, atomic_path, write_checked_json
from dpsweep.data.examples import Split
from dpsweep.data.prepared import (
    KINDS_OF_INPUTS,
    METADATA,
    Array,
    CutTexts,
    DatasetError,
    DatasetMetadata,
    PreparedDataset,
    Resize,
    contents,
    map_arrays,
)
from dpsweep.study.datasets import KINDS
from dpsweep.study.messages import shorten

log = logging.getLogger(__name__)

_SECONDS_BETWEEN_LINES = 10


def write_prepared(
    folder: Path, *, train: Split, test: Split, refuse_duplicates: bool = False, **facts: Any
) -> PreparedDataset:
    """Write a prepared dataset and open it.

    The files are written beside the folder, which they replace at the end, so a reader finds a whole dataset
    or none. One block of inputs is in memory at a time.

    Args:
        folder: to replace.
        train: training examples.
        test: test examples.
        refuse_duplicates: whether a test example with the inputs of a training example is an error.
        facts: the fields of `DatasetMetadata` that are not computed from the arrays.

    Raises:
        DatasetError: a label is outside the classes, inputs have another type or shape than their kind,
            a split has different numbers of inputs and labels, the disk is too small, or duplicates are an
            error.
        ValidationError: a fact is missing or unknown.
    """
    with atomic_folder(folder) as made:
        _write(made, train, test, refuse_duplicates, facts)
    return PreparedDataset.open(folder)


def _write(
    folder: Path, train: Split, test: Split, refuse_duplicates: bool, facts: dict[str, Any]
) -> None:
    name, kind, classes = facts["name"], facts.setdefault("kind", "image"), facts["classes"]
    if kind not in KINDS_OF_INPUTS or len(set(classes)) < len(classes):
        raise DatasetError(
            f"{name}: found kind {kind!r} and the classes {shorten(classes)}; allowed: "
            f"{', '.join(KINDS_OF_INPUTS)}, and each class once"
        )
    hashes_of: dict[str, Hashes | None] = {}
    cut: dict[str, CutTexts] = {}
    for key, split in (("train", train), ("test", test)):
        labels = np.asarray(split.labels)
        _check_labels(f"{name}, {key} labels", labels, len(classes))
        rows = _write_inputs(folder / f"{key}_inputs.npy", split.inputs, len(labels))
        if rows != len(labels):
            raise DatasetError(f"{name}, {key}: {rows} inputs for {len(labels)} labels")
        write_array(folder / f"{key}_labels.npy", [labels.astype(np.int64)], rows)
        if split.units is not None:
            # Their names are not stored, because they may be those of persons.
            _, units = np.unique(split.units, return_inverse=True)
            write_array(folder / f"{key}_units.npy", [units.astype(np.int64)], rows)
            facts[f"{key}_units"] = int(units.max()) + 1
        hashes_of[key] = getattr(split.inputs, "hashes", None)
        if found := getattr(split.inputs, "cut", None):
            cut[key] = found
        facts |= {
            f"{key}_size": len(labels),
            f"{key}_counts": np.bincount(labels, minlength=len(classes)).tolist(),
        }
    arrays = map_arrays(folder)
    shape = _check_inputs(name, kind, arrays["train_inputs"], arrays["test_inputs"])
    duplicates: list[str] = []
    if kind in KINDS:  # features have the duplicates of their data
        seen, tested = (
            # Texts that were cut may have the same row.
            row_hashes(folder / f"{key}_inputs.npy") if hashes is None else hashes
            for key, hashes in hashes_of.items()
        )
        duplicates = find_duplicates(seen, tested, train.where, test.where)
        say_duplicates(name, kind, duplicates, facts["test_size"], refuse_duplicates)
    checksum, file_checksums = _checksums(folder, arrays, facts.get("resize"))
    metadata = DatasetMetadata(
        **facts,
        shape=shape,
        duplicates=tuple(duplicates),
        cut=cut,
        checksum=checksum,
        file_checksums=file_checksums,
    )
    write_checked_json(folder / METADATA, metadata.model_dump(mode="json"))


def _check_inputs(name: str, kind: str, train: Array, test: Array) -> tuple[int, ...]:
    """Check types and shapes, and return the shape of an input."""
    (dtype, shape), other = (train.dtype, train.shape[1:]), (test.dtype, test.shape[1:])
    known = KINDS_OF_INPUTS[kind]
    grey_or_rgb = kind != "image" or shape[-1:] in ((1,), (3,))
    right = str(dtype) in known.types and len(shape) == len(known.axes) and grey_or_rgb
    if not right or other != (dtype, shape):
        raise DatasetError(
            f"{name}: a training input is {dtype} {shape}, a test input {other[0]} {other[1]}; allowed: both "
            f"{' or '.join(known.types)} ({', '.join(known.axes)})"
            f"{' with 1 or 3 channels' if kind == 'image' else ''}"
        )
    return shape


def _write_inputs(path: Path, inputs: Any, rows: int) -> int:
    """Write an array or blocks of rows, or move a finished file to ``path``; return the number of rows."""
    if isinstance(inputs, Path):
        inputs.replace(path)
        return len(np.load(path, mmap_mode="r"))
    return write_array(path, [inputs] if isinstance(inputs, np.ndarray) else inputs, rows)


def _checksums(
    folder: Path, arrays: "Mapping[str, np.memmap[Any, Any]]", resize: Resize | None
) -> tuple[str, dict[str, str]]:
    """Return the SHA-256 of all arrays, and a fast checksum of each array."""
    everything, files = hashlib.sha256(), {}
    for name, mapped in arrays.items():
        file = xxhash.xxh3_128()
        for part in contents(folder / f"{name}.npy", mapped):
            everything.update(part)
            file.update(part)
        files[name] = file.hexdigest()
    if resize is not None:  # it changes the inputs of the network, so also the keys of trials
        everything.update(resize.model_dump_json().encode())
    return everything.hexdigest(), files


def _check_labels(what: str, labels: npt.NDArray[Any], classes: int) -> None:
    whole = labels.ndim == 1 and labels.dtype.kind in "iu" and len(labels)
    if not whole or labels.min() < 0 or labels.max() >= classes:
        raise DatasetError(
            f"{what}: found {labels.dtype} {labels.shape}, {shorten(np.unique(labels).tolist())}; allowed: "
            f"integers from 0 to {classes - 1} for {classes} classes, and one example or more"
        )


# -- large arrays ------------------------------------------------------------------------------


def write_array(path: Path, blocks: Iterable[Array], expected: int) -> int:
    """Write blocks of rows as one .npy file.

    Args:
        path: of the file.
        blocks: of rows of one type and shape, at least one block.
        expected: number of rows, for the space on the disk.

    Returns:
        The number of rows.

    Raises:
        DatasetError: blocks differ, there is none, or the disk is too small.
    """
    rows, first = 0, None
    with atomic_path(path) as partial, partial.open("wb") as stream:
        for block in blocks:
            kind = block.dtype, block.shape[1:]
            if first is None:
                first = kind
                _require_space(path.parent, expected * math.prod(kind[1]) * kind[0].itemsize)
                _write_header(stream, *kind, rows)
            if kind != first:
                raise DatasetError(
                    f"{path.name}: found {kind[0]} {kind[1]} among inputs of {first[0]} {first[1]}; all "
                    "inputs must have one type and shape"
                )
            stream.write(np.ascontiguousarray(block).data)
            rows += len(block)
        if first is None:
            raise DatasetError(f"{path.name}: 0 inputs")
        stream.seek(0)
        _write_header(stream, *first, rows)
    return rows


def _write_header(
    stream: BinaryIO, dtype: np.dtype[Any], shape: tuple[int, ...], rows: int
) -> None:
    """Write the header of a .npy file; its length does not depend on the number of rows."""
    descr = np.lib.format.dtype_to_descr(dtype)
    header = {"descr": descr, "fortran_order": False, "shape": (rows, *shape)}
    np.lib.format.write_array_header_1_0(stream, header)


def _require_space(folder: Path, needed: int) -> None:
    """Refuse an array of some bytes that does not fit on the disk of a folder."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DatasetError(
            f"{folder}: {needed / 1e9:.1f} GB are needed, {free / 1e9:.1f} GB are free on that disk; make "
            "room, or set results to a folder on another one"
        )


def progress(what: str, total: int) -> Callable[[int], None]:
    """Return a function of the number of newly finished examples, which logs a line every ten seconds."""
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

    return advance


# -- duplicates --------------------------------------------------------------------------------

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
