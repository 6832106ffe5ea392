"""How a prepared dataset is written: array by array, with checksums, and its metadata last."""

import hashlib
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import xxhash

from dpsweep.base.files import atomic_path, write_checked_json
from dpsweep.data.prepared import (
    METADATA,
    READ_BYTES,
    DatasetError,
    DatasetMetadata,
    FeatureIdentity,
    PreparedDataset,
    TokenizerIdentity,
    class_counts,
    signature,
)
from dpsweep.data.resize import Resize
from dpsweep.study.messages import shorten

log = logging.getLogger(__name__)

_Row = tuple[np.dtype[Any], tuple[int, ...]]
"""type and shape of one input"""


@dataclass(frozen=True)
class Split:
    """Inputs and labels of one split, before they are written."""

    inputs: npt.NDArray[Any] | Iterable[npt.NDArray[Any]] | Path
    """(examples, *shape), as they are stored; for more than fits in memory blocks of such rows, or a
    .npy file of them, which is moved"""
    labels: npt.NDArray[np.int64]
    """(examples,)"""
    where: Callable[[int], str] = "row {}".format
    """what the example of a row is called, for messages"""


def write_prepared(
    folder: Path,
    *,
    name: str,
    title: str,
    source: str,
    revision: str | None,
    classes: Sequence[str],
    train: Split,
    test: Split,
    kind: str = "image",
    skipped: Sequence[str] = (),
    ignored: Sequence[str] = (),
    tokenizer: TokenizerIdentity | None = None,
    resize: Resize | None = None,
    features: FeatureIdentity | None = None,
    refuse_duplicates: bool = False,
) -> PreparedDataset:
    """Write a prepared dataset and open it.

    Every file is replaced atomically, ``metadata.json`` last: until it is there, the folder is
    not a prepared dataset. One block of inputs is in memory at a time.

    Args:
        folder: to write.
        name: in the study.
        title: for figures and tables.
        source: where the data come from, for people.
        revision: of the source, if it has any.
        classes: names, in the order of the labels.
        train: training examples.
        test: test examples.
        kind: of inputs: image, text or features.
        skipped: examples that were left out, with the reason.
        ignored: files that lay among the images and are none.
        tokenizer: that made the numbers of texts.
        resize: of images that are stored smaller than the network's input.
        features: the network that gave features.
        refuse_duplicates: whether a test example with the inputs of a training example is an error.

    Raises:
        DatasetError: labels outside the classes, inputs that are not of the type and shape of
            their kind, splits whose inputs and labels differ in number, or duplicates.
    """
    _check_classes(name, classes)
    # A rewrite that is interrupted must not leave old metadata beside new arrays.
    (folder / METADATA).unlink(missing_ok=True)
    digest = _Digest()
    (train_row, train_counts), (test_row, test_counts) = (
        _write_split(folder, f"{name}, {split}", split, content, len(classes), digest)
        for split, content in (("train", train), ("test", test))
    )
    _check_inputs(name, kind, train_row, test_row)
    duplicates = [] if kind == "features" else _duplicates(folder, train.where, test.where)
    if duplicates:
        _say_duplicates(name, kind, duplicates, sum(test_counts), refuse_duplicates)
    if resize is not None:  # other inputs of the network, so other trials
        digest.all.update(resize.model_dump_json().encode())
    metadata = DatasetMetadata(
        name=name,
        title=title,
        kind=kind,
        source=source,
        revision=revision,
        classes=tuple(classes),
        train_size=sum(train_counts),
        test_size=sum(test_counts),
        train_counts=train_counts,
        test_counts=test_counts,
        shape=train_row[1],
        resize=resize,
        skipped=tuple(skipped),
        ignored=tuple(ignored),
        duplicates=tuple(duplicates),
        checksum=digest.all.hexdigest(),
        file_checksums={file: each.hexdigest() for file, each in digest.files.items()},
        tokenizer=tokenizer,
        features=features,
    )
    write_checked_json(folder / METADATA, metadata.model_dump(mode="json"))
    return PreparedDataset.open(folder)


def _check_classes(name: str, classes: Sequence[str]) -> None:
    if repeated := sorted({each for each in classes if classes.count(each) > 1}):
        raise DatasetError(f"{name}: found the class {shorten(repeated)} twice; allowed: each once")


def _write_split(
    folder: Path, where: str, split: str, content: Split, classes: int, digest: "_Digest"
) -> tuple[_Row, tuple[int, ...]]:
    """Write inputs and labels of a split; return type and shape of an input, and examples by class."""
    labels = np.asarray(content.labels)
    _check_labels(f"{where} labels", labels, classes)
    labels = labels.astype(np.int64)
    inputs, path = content.inputs, folder / f"{split}_inputs.npy"
    if isinstance(inputs, Path):
        row = _move_array(inputs, path, len(labels), digest)
    else:
        blocks = [inputs] if isinstance(inputs, np.ndarray) else inputs
        row = _write_array(path, blocks, len(labels), digest)
    _write_array(folder / f"{split}_labels.npy", [labels], len(labels), digest)
    return row, class_counts(labels, classes)


def _check_inputs(name: str, kind: str, train: _Row, test: _Row) -> None:
    dtype, shape = train
    if train != test:
        raise DatasetError(
            f"{name}: a training input is {dtype} {shape}, a test input {test[0]} "
            f"{test[1]}; they must agree"
        )
    if kind == "image" and (dtype != np.uint8 or len(shape) != 3 or shape[2] not in (1, 3)):
        raise DatasetError(
            f"{name}: an input is {dtype} {shape}; allowed: uint8 (height, width, channels) with "
            "1 or 3 channels"
        )
    if kind == "text" and (dtype != np.int32 or len(shape) != 1):
        raise DatasetError(f"{name}: an input is {dtype} {shape}; allowed: int32 (length,)")
    if kind == "features" and (dtype != np.float32 or len(shape) != 1):
        raise DatasetError(f"{name}: an input is {dtype} {shape}; allowed: float32 (features,)")


def _duplicates(folder: Path, train: Callable[[int], str], test: Callable[[int], str]) -> list[str]:
    """Name the test examples whose inputs are those of a training example, each with that one."""
    hashes, first = np.unique(_row_hashes(folder / "train_inputs.npy"), return_index=True)
    found = _row_hashes(folder / "test_inputs.npy")
    places = np.searchsorted(hashes, found).clip(max=len(hashes) - 1)
    return [
        f"{test(row)} = {train(int(first[places[row]]))}"
        for row in np.flatnonzero(hashes[places] == found).tolist()
    ]


def _row_hashes(path: Path) -> npt.NDArray[np.uint64]:
    """Return a hash of each row of a .npy file.

    Two of 64 bits agree by chance once in 10^8 datasets of a million examples and 100,000 for testing.
    """
    with path.open("rb") as stream:
        np.lib.format.read_magic(stream)
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
        size = math.prod(shape[1:]) * dtype.itemsize
        rows = (xxhash.xxh3_64_intdigest(stream.read(size)) for _ in range(shape[0]))
        return np.fromiter(rows, np.uint64, shape[0])


def _say_duplicates(
    name: str, kind: str, duplicates: Sequence[str], test_size: int, refuse: bool
) -> None:
    """Say how many there are.

    Args:
        name: of the dataset.
        kind: of inputs.
        duplicates: what `_duplicates` returns.
        test_size: all test examples.
        refuse: whether this is an error.

    Raises:
        DatasetError: it is.
    """
    same = "tokens" if kind == "text" else "pixels"
    found = (
        f"{len(duplicates)} of {test_size} test examples have the {same} of a training example, and "
        f"tell nothing of unseen ones: {shorten(duplicates)}"
    )
    if refuse:
        raise DatasetError(
            f"datasets.{name}: {found}\nRemove one of both, or set duplicates: warn to use them"
        )
    log.warning("%s: %s", name, found)


class _Digest:
    """Checksums of arrays while they are written: of all of them, and of each."""

    def __init__(self) -> None:
        self.all = hashlib.sha256()
        self.files: dict[str, xxhash.xxh3_128] = {}

    def begin(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        """Go on with another array."""
        self._file = self.files[name] = xxhash.xxh3_128()
        self.update(signature(dtype, shape))

    def update(self, content: bytes | memoryview) -> None:
        """Add content of the array."""
        self.all.update(content)
        self._file.update(content)


def _write_array(
    path: Path, blocks: Iterable[npt.NDArray[Any]], rows: int, digest: _Digest
) -> _Row:
    """Write blocks of rows as one .npy file; return the type and shape of a row."""
    row_shape: tuple[int, ...] | None = None
    dtype: np.dtype[Any] | None = None
    written = 0
    with atomic_path(path) as partial, partial.open("wb") as stream:
        for block in blocks:
            if row_shape is None or dtype is None:
                row_shape, dtype = block.shape[1:], block.dtype
                write_array_header(stream, dtype, (rows, *row_shape))
                digest.begin(path.stem, dtype, (rows, *row_shape))
            if (block.dtype, block.shape[1:]) != (dtype, row_shape):
                raise DatasetError(
                    f"{path.name}: found {block.dtype} {block.shape[1:]} among inputs of "
                    f"{dtype} {row_shape}; all inputs must have one type and shape"
                )
            content = np.ascontiguousarray(block)
            stream.write(content.data)
            digest.update(content.data)
            written += len(block)
        if row_shape is None or dtype is None or written != rows:
            raise DatasetError(f"{path.name}: {written} inputs for {rows} labels")
    return dtype, row_shape


def _move_array(source: Path, path: Path, rows: int, digest: _Digest) -> _Row:
    """Move a .npy file to its place; return the type and shape of a row."""
    with source.open("rb") as stream:
        np.lib.format.read_magic(stream)
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
        if shape[0] != rows:
            raise DatasetError(f"{path.name}: {shape[0]} inputs for {rows} labels")
        digest.begin(path.stem, dtype, shape)
        # Read as a file: mapped pages would count as memory of the process.
        while content := stream.read(READ_BYTES):
            digest.update(content)
    source.replace(path)
    return dtype, shape[1:]


def write_array_header(stream: BinaryIO, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Write the beginning of a .npy file; it is as long for any number of rows."""
    header = {
        "descr": np.lib.format.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": shape,
    }
    np.lib.format.write_array_header_1_0(stream, header)


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
