"""Prepared datasets: four memory-mapped arrays and their metadata.

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

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import numpy.typing as npt
import xxhash
from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from dpsweep.base.errors import DpsweepError
from dpsweep.base.files import DamagedFileError, read_checked_json
from dpsweep.study.datasets import KINDS, Dataset, Kind, held_out_rows

# The order is part of the checksum.
_ARRAYS = ("train_inputs", "train_labels", "test_inputs", "test_labels")
_UNITS = ("train_units", "test_units")
METADATA = "metadata.json"
_READ_BYTES = 2**24
KINDS_OF_INPUTS: Mapping[str, Kind] = {
    **KINDS,
    "features": Kind(("float32",), ("features",), "numbers", keys={}),
}
"""Kinds of data, and features, which are computed from data."""

Array = npt.NDArray[Any]
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
        """Return how images of a dataset are resized to the network's input.

        Raises:
            DatasetError: the dataset has no ``image_size``.
        """
        if dataset.image_size is None:
            raise DatasetError("image_size: missing; images need a size in pixels")
        return cls(size=dataset.image_size, interpolation=dataset.interpolation, crop=dataset.crop)

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
    """layer, pooling and transformation (see `dpsweep.study.Features`)"""
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
        return DatasetMetadata.model_validate(read_checked_json(folder / METADATA))


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
    except DamagedFileError as error:
        raise kind(str(error), error.remake) from None
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
