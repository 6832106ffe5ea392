"""Writing of prepared datasets: array by array, with checksums and duplicates, and the metadata last."""

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

from dpsweep.base.files import atomic_path, write_checked_json
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
# Fields of `DatasetMetadata` that are computed from the arrays.
_COMPUTED = {
    *("train_size", "test_size", "train_counts", "test_counts"),
    *("train_units", "test_units", "shape", "duplicates", "cut", "checksum", "file_checksums"),
}


def write_prepared(
    folder: Path, *, train: Split, test: Split, refuse_duplicates: bool = False, **facts: Any
) -> PreparedDataset:
    """Write a prepared dataset and open it.

    Every file is replaced atomically, ``metadata.json`` last. Without this file the folder is not a
    prepared dataset. One block of inputs is in memory at a time.

    Args:
        folder: to write.
        train: training examples.
        test: test examples.
        refuse_duplicates: whether a test example with the inputs of a training example is an error.
        facts: the fields of `DatasetMetadata` that are not computed from the arrays.

    Raises:
        DatasetError: a label is outside the classes, inputs have another type or shape than their kind,
            a split has different numbers of inputs and labels, or duplicates are an error.
        TypeError: a fact is missing or unknown.
    """
    required = {key for key, field in DatasetMetadata.model_fields.items() if field.is_required()}
    if wrong := (facts.keys() - DatasetMetadata.model_fields) | (
        required - _COMPUTED - facts.keys()
    ):
        raise TypeError(f"write_prepared: facts that are missing or unknown: {sorted(wrong)}")
    name, kind, classes = facts["name"], facts.get("kind", "image"), facts["classes"]
    if kind not in KINDS_OF_INPUTS:
        raise DatasetError(f"{name}: found kind {kind!r}; allowed: {', '.join(KINDS_OF_INPUTS)}")
    if repeated := sorted({each for each in classes if classes.count(each) > 1}):
        raise DatasetError(f"{name}: found the class {shorten(repeated)} twice; allowed: each once")
    # An interrupted rewrite must not leave old metadata with new arrays.
    (folder / METADATA).unlink(missing_ok=True)
    hashes_of: dict[str, Hashes | None] = {}
    cut: dict[str, CutTexts] = {}
    for key, split in (("train", train), ("test", test)):
        labels = np.asarray(split.labels)
        _check_labels(f"{name}, {key} labels", labels, len(classes))
        _write_array(folder / f"{key}_inputs.npy", split.inputs, len(labels))
        _write_array(folder / f"{key}_labels.npy", labels.astype(np.int64), len(labels))
        (folder / f"{key}_units.npy").unlink(missing_ok=True)
        if (
            split.units is not None
        ):  # their names are not stored, because they may be those of persons
            _, units = np.unique(split.units, return_inverse=True)
            _write_array(folder / f"{key}_units.npy", units.astype(np.int64), len(labels))
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
    return PreparedDataset.open(folder)


def _check_inputs(name: str, kind: str, train: Array, test: Array) -> tuple[int, ...]:
    """Check types and shapes, and return the shape of an input."""
    (dtype, shape), other = (train.dtype, train.shape[1:]), (test.dtype, test.shape[1:])
    if (dtype, shape) != other:
        raise DatasetError(
            f"{name}: a training input is {dtype} {shape}, a test input {other[0]} {other[1]}; they "
            "must agree"
        )
    known = KINDS_OF_INPUTS[kind]
    grey_or_rgb = kind != "image" or shape[-1:] in ((1,), (3,))
    if str(dtype) not in known.types or len(shape) != len(known.axes) or not grey_or_rgb:
        raise DatasetError(
            f"{name}: an input is {dtype} {shape}; allowed: {' or '.join(known.types)} "
            f"({', '.join(known.axes)}){' with 1 or 3 channels' if kind == 'image' else ''}"
        )
    return shape


def _write_array(path: Path, inputs: Any, rows: int) -> None:
    """Write an array or blocks of rows as one .npy file, or move a finished file to ``path``."""
    if isinstance(inputs, Path):
        if (found := len(np.load(inputs, mmap_mode="r"))) != rows:
            raise DatasetError(f"{path.name}: {found} inputs for {rows} labels")
        inputs.replace(path)
        return
    first: npt.NDArray[Any] | None = None
    written = 0
    with atomic_path(path) as partial, partial.open("wb") as stream:
        for block in [inputs] if isinstance(inputs, np.ndarray) else inputs:
            if first is None:
                first = block[:0]
                write_array_header(stream, first.dtype, (rows, *first.shape[1:]))
            if (block.dtype, block.shape[1:]) != (first.dtype, first.shape[1:]):
                raise DatasetError(
                    f"{path.name}: found {block.dtype} {block.shape[1:]} among inputs of "
                    f"{first.dtype} {first.shape[1:]}; all inputs must have one type and shape"
                )
            stream.write(np.ascontiguousarray(block).data)
            written += len(block)
        if first is None or written != rows:
            raise DatasetError(f"{path.name}: {written} inputs for {rows} labels")


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
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise DatasetError(f"{what}: found {labels.dtype} {labels.shape}; allowed: integers (N,)")
    if len(labels) == 0:
        raise DatasetError(f"{what}: there is no example")
    if labels.min() < 0 or labels.max() >= classes:
        raise DatasetError(
            f"{what}: found {labels.min()} to {labels.max()}; allowed: 0 to {classes - 1} "
            f"({classes} classes)"
        )


# -- large arrays ------------------------------------------------------------------------------


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
    advance = progress(f"{path.stem} {what}", examples)
    with atomic_path(path) as partial, partial.open("wb") as stream:
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


def progress(what: str, total: int) -> Callable[[int], None]:
    """Return a function to call with the number of newly finished examples: it logs a line every ten seconds.

    Args:
        what: noun for the examples.
        total: number of all examples.
    """
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
