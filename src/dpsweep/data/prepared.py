"""Prepared datasets: a `Split` of training and one of test examples, written as memory-mapped arrays.

Features of a frozen network are stored as a prepared dataset too.

A prepared dataset is a folder::

    metadata.json      `DatasetMetadata`; written last, so a folder with this file is complete
    train_inputs.npy   images: uint8 (N, height, width, channels)
                       texts: int32 (N, length), token numbers, -1 after the end of a text
                       embeddings: float32 or float16 (N, dimension)
                       features: float32 (N, features)
    train_labels.npy   int64 (N,), values in [0, number of classes)
    test_inputs.npy    as train_inputs.npy, (test size, ...)
    test_labels.npy    int64 (test size,)
    train_units.npy    int64 (N,), the number of each row's unit; only if units have several rows
    test_units.npy     int64 (test size,), likewise
"""

import hashlib
import json
import logging
import math
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, Self, cast

import numpy as np
import numpy.typing as npt
import xxhash
from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from dpsweep.base import files
from dpsweep.base.errors import DpsweepError
from dpsweep.study.datasets import KINDS, Dataset, Kind, held_out_rows
from dpsweep.study.messages import shorten

log = logging.getLogger(__name__)

# The order is part of the checksum.
_ARRAYS = ("train_inputs", "train_labels", "test_inputs", "test_labels")
_UNITS = ("train_units", "test_units")
METADATA = "metadata.json"
_READ_BYTES = 2**24
_SECONDS_BETWEEN_LINES = 10
KINDS_OF_INPUTS: Mapping[str, Kind] = {
    **KINDS,
    "features": Kind(("float32",), ("features",), "numbers", keys={}),
}
"""Kinds of data, and features, which are computed from data."""

Array = npt.NDArray[Any]
Labels = npt.NDArray[np.int64]
PADDING = -1
"""Number after the end of a text. It is not a token number, so the length of each text stays known."""


class DatasetError(DpsweepError):
    """A dataset that cannot be prepared or read; the message contains the remedy."""


Interpolation = Literal["bicubic", "bilinear", "nearest"]


class Resize(BaseModel):
    """The resizing of an image of any size to a square, as in Pillow.

    Without ``crop`` the whole image becomes the square. With ``crop`` the shorter side becomes
    ``size / crop`` pixels, and the centre is cut out, as in timm's transform for evaluation.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: PositiveInt
    """Height and width of the network's input, pixels."""
    interpolation: Interpolation
    crop: Annotated[float, Field(gt=0, le=1)] | None = None

    @classmethod
    def of(cls, dataset: Dataset) -> Self:
        """Return how images of a dataset are resized to the network's input."""
        size = cast(int, dataset.image_size)  # a study of images has it
        return cls(size=size, interpolation=dataset.interpolation, crop=dataset.crop)

    def geometry(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Return height and width after resizing, and top and left of the square in it, in pixels."""
        if self.crop is None:
            return self.size, self.size, 0, 0
        short = int(self.size / self.crop)
        shorter = min(height, width)
        height, width = int(short * height / shorter), int(short * width / shorter)
        top, left = (round((side - self.size) / 2) for side in (height, width))
        return height, width, top, left

    def enlarges(self, height: int, width: int) -> bool:
        """Tell whether neither side is longer than the square's, and at least one is shorter."""
        return max(height, width) <= self.size and min(height, width) < self.size


class TokenizerIdentity(BaseModel):
    """The tokenizer of a dataset of texts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    vocabulary: int
    """Upper bound of the token numbers, exclusive."""
    checksum: str
    """SHA-256 of its ``tokenizer.json`` as the library writes it."""


class CutTexts(BaseModel):
    """The texts of a split that are longer than ``max_length``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    texts: int
    """Number of texts that were cut."""
    share_of_tokens: float
    """Share of the tokens of all texts that was cut off, without special tokens."""


class FeatureIdentity(BaseModel):
    """The network and the dataset from which features were computed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dataset: str
    """checksum of the dataset"""
    backbone: str
    """checksum of the backbone"""
    features: dict[str, str | dict[str, str | int] | None]
    """layer, pooling and transformation (see `dpsweep.study.networks.Features`)"""
    version: int
    """of the code that computes features"""


class DatasetMetadata(BaseModel):
    """Facts about a prepared dataset; the content of its ``metadata.json``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    title: str
    kind: str = "image"
    """of its inputs: image, text, embedding or features"""
    source: str
    revision: str | None
    classes: tuple[str, ...]
    train_size: int
    test_size: int
    train_counts: tuple[int, ...]
    """Training examples of each class, in the order of ``classes``."""
    test_counts: tuple[int, ...]
    train_units: Annotated[int | None, Field(exclude_if=lambda units: units is None)] = None
    """Number of units in the training set, if they have several rows."""
    test_units: Annotated[int | None, Field(exclude_if=lambda units: units is None)] = None
    shape: tuple[int, ...]
    """Shape of one input: (height, width, channels) for an image, (length,) for a text, (dimension,) or
    (features,)."""
    resize: Annotated[Resize | None, Field(exclude_if=lambda resize: resize is None)] = None
    """How a batch of stored images is resized, if they are smaller than the network's input."""
    skipped: tuple[str, ...] = ()
    """Unreadable examples that were left out, with the reason."""
    ignored: tuple[str, ...] = ()
    """Files among the images that are not images, such as hidden files."""
    duplicates: Annotated[tuple[str, ...], Field(exclude_if=lambda names: not names)] = ()
    """Test examples with the input of a training example, and the name of that one."""
    cut: Annotated[dict[str, CutTexts], Field(exclude_if=lambda cut: not cut)] = {}
    """For train and test, the texts that were cut, if any."""
    checksum: str
    """SHA-256 over type, shape and content of the four arrays, and ``resize``; a part of every trial's
    key."""
    file_checksums: dict[str, str]
    """XXH3 of type, shape and content of each array; fast, and checked at every opening."""
    tokenizer: TokenizerIdentity | None = None
    """Set for texts only."""
    features: FeatureIdentity | None = None
    """Set for features only."""


@dataclass(frozen=True)
class PreparedDataset:
    """A prepared dataset: metadata and read-only, memory-mapped arrays."""

    folder: Path
    metadata: DatasetMetadata
    train_inputs: Array
    """uint8 (N, height, width, channels), int32 (N, length), float32 (N, features), or float32 or float16
    (N, dimension)"""
    train_labels: npt.NDArray[np.int64]
    """(N,)"""
    test_inputs: Array
    test_labels: npt.NDArray[np.int64]
    train_units: npt.NDArray[np.int64] | None = None
    """(N,), the number of each row's unit; None: each row is a unit"""
    test_units: npt.NDArray[np.int64] | None = None

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """Map the arrays of a prepared dataset.

        All arrays are read once and compared with the metadata: types, shapes, checksums and counts of
        labels. This takes seconds for 10 GB, and loads data from disk into memory for training.

        Raises:
            DatasetError: the folder is missing, incomplete or damaged.
        """
        folder = Path(folder)
        dataset = cls(folder, read_metadata(folder), **map_arrays(folder))
        with opening(folder, "dataset", DatasetError):
            dataset._compare_with_metadata()
        return dataset

    def hold_out(self, share: float) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Split the training set into rows for training and a share of rows for selection.

        Whether a row is held out depends on its number only, or that of its unit (see `held_out_rows`).

        Returns:
            Training rows and held-out rows: ascending row numbers, together all rows.
        """
        rows = np.arange(self.metadata.train_size)
        units = rows if self.train_units is None else self.train_units
        held_out = held_out_rows(self.metadata.train_units or len(rows), share)
        chosen = np.isin(units, np.array(held_out, dtype=np.int64))
        return rows[~chosen], rows[chosen]

    def _compare_with_metadata(self) -> None:
        """Compare the checksum of each array, which covers its type, shape and content."""
        for name in (*_ARRAYS, *_UNITS):
            array, said = getattr(self, name), self.metadata.file_checksums.get(name)
            found = None
            if array is not None:
                hashed = xxhash.xxh3_128()
                for part in contents(self.folder / f"{name}.npy", array):
                    hashed.update(part)
                found = hashed.hexdigest()
            if found != said:
                raise ValueError(f"{name}.npy has the checksum {found}, but {METADATA} says {said}")


def map_arrays(folder: Path) -> dict[str, "np.memmap[Any, Any]"]:
    """Map the arrays of a prepared dataset; return them by name, in the order of the checksum.

    Raises:
        DatasetError: an array is missing or damaged.
    """
    with opening(folder, "dataset", DatasetError):
        return {
            name: np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
            for name in (*_ARRAYS, *(each for each in _UNITS if (folder / f"{each}.npy").exists()))
        }


def read_metadata(folder: Path) -> DatasetMetadata:
    """Read the metadata of a prepared dataset without its arrays.

    Raises:
        DatasetError: the metadata are missing or damaged.
    """
    with opening(folder, "dataset", DatasetError):
        content = files.read_checked_json(folder / METADATA)
        return files.parsed(DatasetMetadata, folder / METADATA, content)


@contextmanager
def opening(folder: Path, what: str, kind: type[DpsweepError]) -> Iterator[None]:
    """Replace errors of reading a prepared folder by one error that asks to prepare it again.

    Args:
        folder: that the block reads.
        what: noun for the content of the folder, for messages.
        kind: type of the error to raise.

    Raises:
        DpsweepError: of type ``kind``, if the block finds missing or damaged files.
    """
    remake = (folder / METADATA,)
    try:
        yield
    except FileNotFoundError as error:
        missing = Path(str(error.filename)).name
        raise kind(f"{folder}: not a prepared {what}, {missing} is missing", remake) from None
    except files.DamagedFileError as error:  # it names the file
        raise kind(str(error), remake) from None
    except (ValueError, TypeError, KeyError, EOFError) as error:
        raise kind(f"{folder}: damaged: {error}", remake) from None


def contents(path: Path, mapped: "np.memmap[Any, Any]") -> Iterator[bytes]:
    """Yield the bytes that the checksums of an array cover: type and shape, then the content."""
    yield json.dumps([mapped.dtype.str, list(mapped.shape)]).encode()
    # The file is read, because mapped pages would count as memory of the process.
    with path.open("rb", buffering=0) as stream:
        stream.seek(mapped.offset)
        while content := stream.read(_READ_BYTES):
            yield content


# -- writing ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Split:
    """Inputs and labels of one split, in order."""

    inputs: Any
    """From a source: texts (iterable repeatedly), `dpsweep.data.images.EncodedImages`, or rows as a network
    reads them. For `write_prepared`: rows, (examples, *shape), as an array, as blocks of rows (iterated
    once), or as a .npy file, which is moved."""
    labels: Labels
    """(examples,)"""
    where: Callable[[int], str] = "row {}".format
    """returns the name of the example at a position, for messages"""
    units: npt.NDArray[np.str_] | None = None
    """the name of each example's unit, (examples,); None: each example is a unit"""

    def only(self, places: Sequence[int] | Labels, inputs: Any = None) -> "Split":
        """Return a subset of the examples.

        Args:
            places: positions of the subset, ascending.
            inputs: of the subset; by default those at its places of an array.
        """
        kept = np.asarray(places, dtype=np.int64)
        inputs = self.inputs[kept] if inputs is None else inputs
        units = None if self.units is None else self.units[kept]
        return Split(inputs, self.labels[kept], lambda row: self.where(int(kept[row])), units)

    def without(self, places: Sequence[int], inputs: Any) -> "Split":
        """Return the split without some examples.

        Args:
            places: positions of the examples to leave out.
            inputs: of the remaining examples.
        """
        return self.only(np.delete(np.arange(len(self.labels)), list(places)), inputs)


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
    with files.atomic_folder(folder) as made:
        _write(made, train, test, refuse_duplicates, facts)
    return PreparedDataset.open(folder)


def _write(
    folder: Path, train: Split, test: Split, refuse_duplicates: bool, facts: dict[str, Any]
) -> None:
    name, kind, classes = facts["name"], facts.setdefault("kind", "image"), facts["classes"]
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
    files.write_checked_json(folder / METADATA, metadata.model_dump(mode="json"))


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
    everything, checksums = hashlib.sha256(), {}
    for name, mapped in arrays.items():
        file = xxhash.xxh3_128()
        for part in contents(folder / f"{name}.npy", mapped):
            everything.update(part)
            file.update(part)
        checksums[name] = file.hexdigest()
    if resize is not None:  # it changes the inputs of the network, so also the keys of trials
        everything.update(resize.model_dump_json().encode())
    return everything.hexdigest(), checksums


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
    with files.atomic_path(path) as partial, partial.open("wb") as stream:
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
