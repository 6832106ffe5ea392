"""Images in IDX files, the format of MNIST and similar datasets (LeCun, Cortes and Burges 1998).

The header has two zero bytes, the code of the data type (8: bytes), the number of axes, and the length of
each axis as a big-endian 32-bit number. The data follow in C order.
"""

import gzip
import math
import zlib
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from dpsweep.base.files import require_content
from dpsweep.config import IdxSource
from dpsweep.data.examples import (
    LabelColumn,
    LabelledData,
    Split,
    encode_labels,
    stratified_share,
)
from dpsweep.data.prepared import DatasetError

_SPLITS = {"train": "train", "test": "t10k"}
_BYTES, _HEADER, _LENGTH = 8, 4, 4


def load_idx(source: IdxSource, size: int) -> LabelledData:
    """Return the images of a folder of IDX files as uint8 (examples, size, size, 1).

    The files are ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte``, and the same with ``t10k``.
    They may end in ``.gz``, and may have a dot before ``idx`` instead of a hyphen. Labels are the classes.

    Args:
        source: the folder, and the share of its training images.
        size: height and width of the images according to the study, pixels.

    Raises:
        DatasetError: a file is missing or has another format, or the images have another size.
    """
    folder = Path(source.path)
    (images, train), (test_images, test) = (_split(folder, split, size) for split in _SPLITS)
    labels, test_labels, classes = encode_labels(train, test)
    kept = stratified_share(labels, lambda row: (row,), source.train_share, source.seed)
    return LabelledData(
        train=Split(images, labels, train.where).only(kept, images[kept]),
        test=Split(test_images, test_labels, test.where),
        classes=classes,
        origin=str(folder),
    )


def _split(folder: Path, split: str, size: int) -> tuple[npt.NDArray[np.uint8], LabelColumn]:
    images_file, images = _read(folder, split, "images", 3)
    labels_file, labels = _read(folder, split, "labels", 1)
    if images.shape[1:] != (size, size):
        height, width = images.shape[1:]
        raise DatasetError(
            f"image_size: found {size}, but images of {height} x {width} pixels in {images_file}; "
            f"allowed: {height if height == width else 'square images'}"
        )
    if len(images) != len(labels):
        raise DatasetError(
            f"{labels_file}: found {len(labels)} labels for the {len(images)} images of "
            f"{images_file.name}; allowed: one for each"
        )
    where = f"image {{}} of {images_file.name}".format
    return images[..., None], LabelColumn(str(labels_file), "", labels.tolist(), where)


def _read(
    folder: Path, split: str, what: Literal["images", "labels"], axes: int
) -> tuple[Path, npt.NDArray[np.uint8]]:
    """Return the file of the images or labels of a split, and its content."""
    names = [
        f"{_SPLITS[split]}-{what}{mark}idx{axes}-ubyte{end}" for mark in "-." for end in ("", ".gz")
    ]
    file = next((folder / name for name in names if (folder / name).is_file()), None)
    if file is None:
        raise DatasetError(
            f"{folder}: found no {names[0]}, plain or with .gz; allowed: four IDX files"
        )
    try:
        require_content(file)
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    except (ValueError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DatasetError(f"{file}: cannot be read: {error}") from None
    begin = _HEADER + _LENGTH * axes
    if len(content) < begin or content[:_HEADER] != bytes([0, 0, _BYTES, axes]):
        raise DatasetError(
            f"{file}: begins with {content[:_HEADER].hex(' ') or 'nothing'}; allowed: 00 00 08 0{axes}, an "
            f"IDX file of bytes with {axes} axes"
        )
    shape = [int(each) for each in np.frombuffer(content[_HEADER:begin], dtype=">u4")]
    if len(content) - begin != math.prod(shape):
        raise DatasetError(
            f"{file}: found {len(content) - begin} bytes after a header that says "
            f"{' x '.join(map(str, shape))}; allowed: a whole file"
        )
    return file, np.frombuffer(content, dtype=np.uint8, offset=begin).reshape(shape)
