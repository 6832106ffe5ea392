"""Readers of images: folders with a folder for each class, and IDX files."""

import gzip
import logging
import os
import re
import struct
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from dpsweep.base.files import require_content
from dpsweep.base.units import count
from dpsweep.data.decoding import EncodedImages
from dpsweep.data.examples import (
    LabelColumn,
    LabelledData,
    Split,
    cut_test_set,
    encode_labels,
    reading,
    stratified_share,
    unit_name,
)
from dpsweep.data.prepared import DatasetError
from dpsweep.study.datasets import FolderSource, IdxSource
from dpsweep.study.messages import shorten

log = logging.getLogger(__name__)

LAYOUT = "<split>/<class>/<image>"
_FOLDER = re.compile("^([^/]+)/")  # what unit: folder stands for
_SPLITS = {"train": "train", "test": "t10k"}
_BYTES = 8
"""Code of bytes in the header of an IDX file."""


# -- folders ---------------------------------------------------------------------------------


def load_folder(source: FolderSource, unit: str | None = None) -> LabelledData:
    """List the images of a folder ``<split>/<class>/<image>``; they are read and decoded later.

    Classes are the folders of the first training folder, in alphabetical order. Every file in them is an
    image, except hidden files. Hidden files, and files beside the classes, are listed in ``ignored``.

    Args:
        source: the folder.
        unit: a regular expression with one group, the unit in the path of a file within its class; "folder":
            the class has a folder of each unit; None: each image is a unit.

    Raises:
        DatasetError: the folder has another layout, the splits have different classes, a symbolic link leads
            out of the folder, a share is empty, or the regular expression is none or has no group.
    """
    folder = _Folder(Path(source.path), None if unit is None else _pattern(unit))
    classes = list(folder.classes(source.train_folders[0]))
    images = folder.images(source.train_folders, classes)
    labels = np.array([each.label for each in images])
    kept = stratified_share(
        labels, lambda place: [images[place].name], source.train_share, source.seed
    )
    train = [images[place] for place in kept]
    if source.test_from_train is None:
        test = folder.images([source.test_folder], classes)
    else:
        names = [image.unit or image.name for image in train]
        cut = source.test_from_train, source.seed, unit is not None
        parts = cut_test_set(names, labels[kept], *cut)
        train, test = ([train[place] for place in places] for places in parts)
    if ignored := sorted(folder.ignored):
        log.warning(
            "%s: ignored %d files that are hidden, or not in a class: %s",
            folder.root, len(ignored), shorten(ignored),
        )  # fmt: skip
    origin = f"folder {folder.root.name}"
    return LabelledData(_split(train), _split(test), classes, origin, ignored=ignored)


@dataclass(frozen=True)
class _Image:
    path: Path
    name: str
    """Path relative to the root; for messages and for drawing shares."""
    label: int
    unit: str | None = None
    """The name of its unit, if units are given."""


@dataclass
class _Folder:
    root: Path
    unit: re.Pattern[str] | None = None
    """finds the unit in the path of a file within its class"""
    ignored: set[str] = field(default_factory=set)
    """Names of files that are hidden, or not in a class."""

    def classes(self, split: str) -> dict[str, Path]:
        """Return the folders of a split by class, sorted by the name of the class."""
        entries = self._entries(self.root / split)
        folders = [entry for entry in entries if entry.is_dir()]
        # One class may be written in two forms of Unicode (macOS uses NFD), or with outer spaces.
        found = {unicodedata.normalize("NFC", each.name.strip()): each for each in folders}
        files = [entry for entry in entries if not entry.is_dir()]
        self.ignored |= {str(file.relative_to(self.root)) for file in files}
        if not found or len(found) < len(folders):
            # Of many images and a table of their labels, the table is named first.
            names = sorted((file.name for file in files), key=lambda name: name.rpartition(".")[2])
            raise DatasetError(
                f"{self.root / split}: found the folders {shorten(each.name for each in folders)} and the "
                f"files {shorten(names)}, which are not read; allowed: {LAYOUT}, each class in one folder"
            )
        return dict(sorted(found.items()))

    def images(self, splits: Sequence[str], classes: Sequence[str]) -> list[_Image]:
        """Return the images of some splits, split by split and class by class."""
        found: list[_Image] = []
        for split in splits:
            inside = self.classes(split)
            if unknown := sorted(set(inside) - set(classes)):
                raise DatasetError(
                    f"{self.root / split}: found the classes {shorten(unknown)}; allowed: those of the first "
                    f"training folder, {shorten(classes)}"
                )
            for name, folder in inside.items():
                for file in self._files(folder):
                    if not file.is_file():
                        raise DatasetError(
                            f"{file}: found no file; allowed: {LAYOUT}, or with unit: folder "
                            "<split>/<class>/<unit>/<image>"
                        )
                    place, unit = str(file.relative_to(self.root)), self._unit_of(file, folder)
                    found.append(_Image(file, place, classes.index(name), unit))
        if not found:
            raise DatasetError(
                f"{self.root}: found no image in {shorten(splits)}; allowed: one or more"
            )
        return found

    def _files(self, folder: Path) -> Iterator[Path]:
        """Yield the files of a class, with ``unit: folder`` those of its folders."""
        for entry in self._entries(folder):
            yield from self._entries(entry) if self.unit is _FOLDER else [entry]

    def _unit_of(self, file: Path, folder: Path) -> str | None:
        """Return the name of a file's unit.

        Raises:
            DatasetError: the regular expression does not find it.
        """
        if self.unit is None:
            return None
        found = self.unit.search(str(file.relative_to(folder)))
        if found is None or not (name := unit_name(found[1] or "")):
            raise DatasetError(
                f"{file}: found no unit in its name; allowed: names in which unit: {self.unit.pattern} finds "
                "one"
            )
        return name

    def _entries(self, folder: Path) -> list[Path]:
        """Return the entries of a folder, sorted, without hidden ones.

        Raises:
            DatasetError: there is no such folder, a name is not UTF-8, or a link leads to anything but a file
                inside the root.
        """
        if not folder.is_dir():
            missing = folder if self.root.is_dir() else self.root
            raise DatasetError(f"{missing}: no such folder; allowed: {LAYOUT}")
        entries = []
        for entry in sorted(folder.iterdir()):
            name = os.fsencode(entry.relative_to(self.root)).decode(errors="replace")
            if entry.name.startswith("."):
                self.ignored.add(name)
                continue
            inside = entry.is_file() and entry.resolve().is_relative_to(self.root.resolve())
            if "\ufffd" in name or (entry.is_symlink() and not inside):
                raise DatasetError(
                    f"{self.root}/{name}: found a name that is not UTF-8, or a symbolic link that leads to "
                    "no file inside the folder; allowed: files with names in UTF-8, and links to them"
                )
            entries.append(entry)
        return entries


def _pattern(unit: str) -> re.Pattern[str]:
    """Return the regular expression of the key ``unit``.

    Raises:
        DatasetError: it is none, or does not have one group.
    """
    try:
        found = _FOLDER if unit == "folder" else re.compile(unit)
        wrong = "" if found.groups == 1 else f" with {count(found.groups, 'group')}"
    except re.error as error:
        wrong = f", which is no regular expression ({error})"
    if wrong:
        raise DatasetError(
            f"unit: found {unit}{wrong}; allowed: a regular expression with one group, such as "
            "(patient\\d+)_, or folder"
        )
    return found


def _split(images: Sequence[_Image]) -> Split:
    encoded = EncodedImages(lambda: ((each.name, each.path) for each in images))
    labels = np.array([image.label for image in images], dtype=np.int64)
    names = [image.unit for image in images if image.unit is not None]
    units = np.array(names, dtype=np.str_) if names else None
    return Split(encoded, labels, lambda place: images[place].name, units)


# -- IDX files -------------------------------------------------------------------------------


def load_idx(source: IdxSource, size: int) -> LabelledData:
    """Return the images of a folder of IDX files as uint8 (examples, size, size, 1).

    IDX is the format of MNIST (LeCun, Cortes and Burges 1998). A header has two zero bytes, the code of the
    data type (8: bytes), the number of axes, and the length of each axis as a big-endian 32-bit number. The
    data follow in C order.

    The files are ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte``, and the same with ``t10k``.
    They may end in ``.gz``, and may have a dot before ``idx`` instead of a hyphen. Labels are the classes.

    Args:
        source: the folder, and the share of its training images.
        size: height and width of the images according to the study, pixels.

    Raises:
        DatasetError: a file is missing or has another format, or the images have another size.
    """
    folder = Path(source.path)
    (images, train), (test_images, test) = (_idx_split(folder, split, size) for split in _SPLITS)
    labels, test_labels, classes = encode_labels(train, test)
    kept = stratified_share(labels, lambda row: (row,), source.train_share, source.seed)
    return LabelledData(
        train=Split(images, labels, train.where).only(kept, images[kept]),
        test=Split(test_images, test_labels, test.where),
        classes=classes,
        origin=str(folder),
    )


def _idx_split(folder: Path, split: str, size: int) -> tuple[npt.NDArray[np.uint8], LabelColumn]:
    images_file, images = _read_idx(folder, split, "images", 3)
    labels_file, labels = _read_idx(folder, split, "labels", 1)
    if images.shape != (len(labels), size, size):
        height, width = images.shape[1:]
        raise DatasetError(
            f"image_size: found {size}, but {len(images)} images of {height} x {width} pixels in "
            f"{images_file}, and {len(labels)} labels in {labels_file}; allowed: square images of this size, "
            "and one label for each"
        )
    where = f"image {{}} of {images_file.name}".format
    return images[..., None], LabelColumn(str(labels_file), "", labels.tolist(), where)


def _read_idx(
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
    with reading(file):
        require_content(file)
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
            content = stream.read()
        magic, *shape = struct.unpack_from(f">{1 + axes}I", content)
        array = np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * axes)
        if magic != _BYTES << 8 | axes:
            raise ValueError(f"it is no IDX file of bytes with {axes} axes")
        return file, array.reshape(shape)
