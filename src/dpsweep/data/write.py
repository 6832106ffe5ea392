"""Writing of prepared datasets: array by array, with checksums, and the metadata last."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from dpsweep.base.files import atomic_path, write_checked_json
from dpsweep.config.datasets import KINDS
from dpsweep.config.messages import shorten
from dpsweep.data.duplicates import Hashes, find_duplicates, row_hashes, say_duplicates
from dpsweep.data.examples import Split
from dpsweep.data.large_arrays import write_array_header
from dpsweep.data.prepared import (
    KINDS_OF_INPUTS,
    METADATA,
    Array,
    CutTexts,
    DatasetError,
    DatasetMetadata,
    PreparedDataset,
    contents,
    map_arrays,
)
from dpsweep.data.resize import Resize

# Fields of `DatasetMetadata` that are computed from the arrays.
_COMPUTED = {
    *("train_size", "test_size", "train_counts", "test_counts"),
    *("shape", "duplicates", "cut", "checksum", "file_checksums"),
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
