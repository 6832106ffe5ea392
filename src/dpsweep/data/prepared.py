"""Prepared datasets: four memory-mapped arrays and what must be known about them.

The features that a frozen network has for a dataset are one too, with other inputs.

A prepared dataset is a folder::

    metadata.json      what it is; written last, so a folder that has it is complete
    train_inputs.npy   images: uint8 (N, height, width, channels)
                       texts: int32 (N, length), token numbers, -1 after the end of a text
                       features: float32 (N, features)
    train_labels.npy   int64 (N,), values in [0, number of classes)
    test_inputs.npy    as train_inputs.npy, (test size, ...)
    test_labels.npy    int64 (test size,)
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
import numpy.typing as npt
import xxhash
from pydantic import BaseModel, ConfigDict

from dpsweep.data.resize import Resize
from dpsweep.errors import DpsweepError
from dpsweep.files import DamagedFileError, atomic_path, read_checked_json, write_checked_json
from dpsweep.study.shares import held_out_rows

# The order is part of the checksum.
_ARRAYS = ("train_inputs", "train_labels", "test_inputs", "test_labels")
_METADATA = "metadata.json"
_READ_BYTES = 2**24
_TYPES = {
    "image": np.dtype(np.uint8),
    "text": np.dtype(np.int32),
    "features": np.dtype(np.float32),
}

PADDING = -1
"""Stands after the end of a text. No token has this number, so texts keep their lengths."""


class DatasetError(DpsweepError):
    """A dataset that cannot be prepared or read; the message says what to do."""


class TokenizerIdentity(BaseModel):
    """Which tokenizer made the numbers of a text."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    vocabulary: int
    """Token numbers are below."""
    checksum: str
    """SHA-256 of its ``tokenizer.json`` as the library writes it."""


class FeatureIdentity(BaseModel):
    """Which network gave features, and for which dataset."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dataset: str
    """its checksum"""
    backbone: str
    """its checksum"""
    features: dict[str, str | None]
    """layer, pooling and transformation (see `dpsweep.study.config.Features`)"""
    version: int
    """of the code that computes features"""


class DatasetMetadata(BaseModel):
    """What is known about a prepared dataset; the content of its ``metadata.json``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    title: str
    kind: str
    source: str
    revision: str | None
    classes: tuple[str, ...]
    train_size: int
    test_size: int
    train_counts: tuple[int, ...]
    """Training examples of each class, in the order of ``classes``."""
    test_counts: tuple[int, ...]
    shape: tuple[int, ...]
    """Shape of one input: (height, width, channels) for an image, (length,) for a text, (features,)."""
    resize: Resize | None = None
    """How images that are stored smaller than the network's input are resized with their batch."""
    skipped: tuple[str, ...] = ()
    """Examples that could not be read and are left out, with the reason."""
    ignored: tuple[str, ...] = ()
    """Files that lay among the images and are none: hidden ones, those of a desktop."""
    checksum: str
    """SHA-256 over type, shape and content of the four arrays, and how they are resized; a part of
    every trial's key."""
    file_checksums: dict[str, str]
    """XXH3 of type, shape and content of each array: quick, and compared whenever it is opened."""
    tokenizer: TokenizerIdentity | None = None
    """Of a text."""
    features: FeatureIdentity | None = None
    """Of features."""


@dataclass(frozen=True)
class PreparedDataset:
    """A prepared dataset: metadata and read-only arrays that are mapped, not loaded."""

    folder: Path
    metadata: DatasetMetadata
    train_inputs: npt.NDArray[Any]
    """uint8 (N, height, width, channels), int32 (N, length), or float32 (N, features)"""
    train_labels: npt.NDArray[np.int64]
    """(N,)"""
    test_inputs: npt.NDArray[Any]
    test_labels: npt.NDArray[np.int64]

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Map the arrays of a prepared dataset.

        Everything is read once and compared with the metadata: types, shapes, checksums and
        counts of labels. It takes seconds for 10 GB in memory, and what comes from a disk is then
        in memory for training.

        Raises:
            DatasetError: the folder is missing, incomplete or damaged.
        """
        metadata = read_metadata(folder)
        try:
            arrays = {
                name: np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
                for name in _ARRAYS
            }
        except FileNotFoundError as error:
            raise _missing(folder, error) from None
        except (ValueError, TypeError, EOFError) as error:
            raise _damaged(folder, str(error)) from None
        dataset = cls(folder=folder, metadata=metadata, **arrays)
        dataset._compare_with_metadata()
        return dataset

    def hold_out(self, share: float) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Split the training set into rows to train on and a share of rows to select on.

        A row is held out by its number alone (see `held_out_rows`).

        Returns:
            Ascending row numbers; together they are all N rows.
        """
        rows = np.arange(self.metadata.train_size)
        held_out = np.array(held_out_rows(len(rows), share), dtype=np.int64)
        return np.delete(rows, held_out), held_out

    def _compare_with_metadata(self) -> None:
        metadata = self.metadata
        for split, size, counts in (
            ("train", metadata.train_size, metadata.train_counts),
            ("test", metadata.test_size, metadata.test_counts),
        ):
            inputs, labels = getattr(self, f"{split}_inputs"), getattr(self, f"{split}_labels")
            found = {
                f"{split}_inputs": (inputs.dtype, inputs.shape),
                f"{split}_labels": (labels.dtype, labels.shape),
            }
            declared = {
                f"{split}_inputs": (_TYPES.get(metadata.kind), (size, *metadata.shape)),
                f"{split}_labels": (np.dtype(np.int64), (size,)),
            }
            for name, (dtype, shape) in found.items():
                if (dtype, shape) != declared[name]:
                    raise _damaged(
                        self.folder,
                        f"{name}.npy is {dtype} {shape}, but {_METADATA} says {declared[name][0]} "
                        f"{declared[name][1]}",
                    )
                checksum = _file_checksum(self.folder / f"{name}.npy", getattr(self, name))
                if checksum != metadata.file_checksums.get(name):
                    raise _damaged(
                        self.folder,
                        f"{name}.npy has the checksum {checksum}, but {_METADATA} says "
                        f"{metadata.file_checksums.get(name)}",
                    )
            if _counts(labels, len(metadata.classes)) != counts:
                raise _damaged(
                    self.folder,
                    f"the labels of {split}_labels.npy do not have the counts of {_METADATA}",
                )


def read_metadata(folder: Path) -> DatasetMetadata:
    """Read what is known about a prepared dataset, and leave its arrays alone.

    Raises:
        DatasetError: it is missing or damaged.
    """
    try:
        return DatasetMetadata.model_validate(read_checked_json(folder / _METADATA))
    except FileNotFoundError as error:
        raise _missing(folder, error) from None
    except DamagedFileError as error:
        raise DatasetError(str(error), error.remake) from None
    except (ValueError, TypeError, KeyError) as error:
        raise _damaged(folder, str(error)) from None


@dataclass(frozen=True)
class Split:
    """Inputs and labels of one split, before they are written."""

    inputs: npt.NDArray[Any] | Iterable[npt.NDArray[Any]] | Path
    """(examples, *shape), as they are stored; for more than fits in memory blocks of such rows, or a
    .npy file of them, which is moved"""
    labels: npt.NDArray[np.int64]
    """(examples,)"""


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
) -> PreparedDataset:
    """Write a prepared dataset and open it.

    Every file is replaced atomically, ``metadata.json`` last: until it is there, the folder is
    not a prepared dataset. One block of inputs is in memory at a time.

    Raises:
        DatasetError: labels outside the classes, inputs that are not of the type and shape of
            their kind, or splits whose inputs and labels differ in number.
    """
    if len(set(classes)) != len(classes):
        raise DatasetError(f"{name}: two classes have the same name: {', '.join(sorted(classes))}")
    # A rewrite that is interrupted must not leave old metadata beside new arrays.
    (folder / _METADATA).unlink(missing_ok=True)
    digest = _Digest()
    rows = {}
    counts = {}
    for split, content in (("train", train), ("test", test)):
        labels = np.asarray(content.labels)
        _check_labels(f"{name}, {split} labels", labels, len(classes))
        labels = labels.astype(np.int64)
        inputs, path = content.inputs, folder / f"{split}_inputs.npy"
        if isinstance(inputs, Path):
            rows[split] = _move_array(inputs, path, len(labels), digest)
        else:
            blocks = [inputs] if isinstance(inputs, np.ndarray) else inputs
            rows[split] = _write_array(path, blocks, len(labels), digest)
        _write_array(folder / f"{split}_labels.npy", [labels], len(labels), digest)
        counts[split] = _counts(labels, len(classes))
    dtype, shape = rows["train"]
    if rows["train"] != rows["test"]:
        raise DatasetError(
            f"{name}: a training input is {dtype} {shape}, a test input {rows['test'][0]} "
            f"{rows['test'][1]}; they must agree"
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
    if resize is not None:  # other inputs of the network, so other trials
        digest.all.update(resize.model_dump_json().encode())
    metadata = DatasetMetadata(
        name=name,
        title=title,
        kind=kind,
        source=source,
        revision=revision,
        classes=tuple(classes),
        train_size=sum(counts["train"]),
        test_size=sum(counts["test"]),
        train_counts=counts["train"],
        test_counts=counts["test"],
        shape=shape,
        resize=resize,
        skipped=tuple(skipped),
        ignored=tuple(ignored),
        checksum=digest.all.hexdigest(),
        file_checksums={name: each.hexdigest() for name, each in digest.files.items()},
        tokenizer=tokenizer,
        features=features,
    )
    absent = {"resize"} if resize is None else set()
    write_checked_json(folder / _METADATA, metadata.model_dump(mode="json", exclude=absent))
    return PreparedDataset.open(folder)


class _Digest:
    """Checksums of arrays while they are written: of all of them, and of each."""

    def __init__(self) -> None:
        self.all = hashlib.sha256()
        self.files: dict[str, xxhash.xxh3_128] = {}

    def begin(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        """Go on with another array."""
        self._file = self.files[name] = xxhash.xxh3_128()
        self.update(_signature(dtype, shape))

    def update(self, content: bytes | memoryview) -> None:
        """Add content of the array."""
        self.all.update(content)
        self._file.update(content)


def _file_checksum(path: Path, mapped: "np.memmap[Any, Any]") -> str:
    """The checksum of a mapped file, as in ``file_checksums``."""
    digest = xxhash.xxh3_128(_signature(mapped.dtype, mapped.shape))
    # Read as a file: mapped pages would count as memory of the process.
    with path.open("rb", buffering=0) as stream:
        stream.seek(mapped.offset)
        while content := stream.read(_READ_BYTES):
            digest.update(content)
    return digest.hexdigest()


def _write_array(
    path: Path, blocks: Iterable[npt.NDArray[Any]], rows: int, digest: _Digest
) -> tuple[np.dtype[Any], tuple[int, ...]]:
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


def _move_array(
    source: Path, path: Path, rows: int, digest: _Digest
) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Move a .npy file to its place; return the type and shape of a row."""
    with source.open("rb") as stream:
        np.lib.format.read_magic(stream)
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
        if shape[0] != rows:
            raise DatasetError(f"{path.name}: {shape[0]} inputs for {rows} labels")
        digest.begin(path.stem, dtype, shape)
        # Read as a file: mapped pages would count as memory of the process.
        while content := stream.read(_READ_BYTES):
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


def _signature(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    return json.dumps([dtype.str, list(shape)]).encode()


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


def _counts(labels: npt.NDArray[np.int64], classes: int) -> tuple[int, ...]:
    if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
        return ()
    return tuple(np.bincount(labels, minlength=classes).tolist())


def _missing(folder: Path, error: FileNotFoundError) -> DatasetError:
    return DatasetError(
        f"{folder}: not a prepared dataset, {Path(str(error.filename)).name} is missing",
        (folder / _METADATA,),
    )


def _damaged(folder: Path, problem: str) -> DatasetError:
    return DatasetError(f"{folder}: damaged: {problem}", (folder / _METADATA,))
