"""Images: readers of folders and of IDX files, and decoding into one file of pixels.

Images are decoded in threads, with bounded memory.
"""

import gzip
import io
import logging
import os
import re
import struct
import unicodedata
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from dpsweep.base.files import found_pointer, require_content
from dpsweep.base.formatting import count
from dpsweep.data import examples
from dpsweep.data.prepared import DatasetError, Resize, Split, progress, write_array
from dpsweep.study.datasets import FolderSource, IdxSource
from dpsweep.study.messages import shorten

log = logging.getLogger(__name__)

# -- decoding ---------------------------------------------------------------------------------

Content = bytes | Path
"""An encoded image, or its file."""
Pixels = npt.NDArray[np.uint8]

_CHUNK = 32
"""Number of images that a thread decodes at a time."""
_MOST_THREADS = 16
_FEW_LEVELS = 17
"""Levels of 12-bit numbers that were saved with 16 bits and are scaled to 8."""
_ANIMATED = "are animations, of which the first frame is read"
_DARK = (
    f"have no level from {_FEW_LEVELS} to 255: they are black, or have 12 bits or fewer of 16, and should be "
    "stretched"
)
_MOST_PIXELS = 2**27
"""Limit of the resized image, before cropping."""

# Formats whose further pages are previews, depths or layers of the first.
_ONE_PICTURE = frozenset({"MPO", "PSD"})
# Pixels of a PNG whose transparent colour Pillow compares with other bits than the file has.
_OTHER_BITS = frozenset({"L;2", "L;4", "I;16B", "RGB;16B"})
# Tags of TIFF, and values of two of them.
_BITS_PER_SAMPLE, _PHOTOMETRIC, _SAMPLE_FORMAT = 258, 262, 339
_WHITE_IS_ZERO, _SIGNED = 0, 2


@dataclass(frozen=True)
class Transform:
    """The decoding of an image to RGB pixels."""

    resize: Resize
    """to the size of the network's input"""
    stored: tuple[int, int] | None = None
    """height and width, if images are stored in their own size and resized with their batch"""

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of the pixels: (height, width, 3)."""
        return (*(self.stored or (self.resize.size, self.resize.size)), 3)

    def __call__(self, content: Content) -> Pixels:
        """Return pixels, uint8 of ``shape``.

        Raises:
            ValueError: it is not an image that can be read. Pillow raises other types, too.
        """
        return self.with_remarks(content)[0]

    def with_remarks(self, content: Content) -> tuple[Pixels, list[str]]:
        """Return pixels, uint8 of ``shape``, and what is odd about the image, in words."""
        image, remarks = _picture(content)
        if self.stored is None:
            size = self.resize.size
            height, width, top, left = self.resize.geometry(image.height, image.width)
            if width * height > _MOST_PIXELS:
                raise ValueError(f"too narrow to crop: {image.width} x {image.height} pixels")
            method = Image.Resampling[self.resize.interpolation.upper()]
            image = image.resize((width, height), method)
            image = image.crop((left, top, left + size, top + size))
        return np.asarray(image), remarks


def make_transform(resize: Resize, *splits: Split) -> Transform:
    """Choose how the images of a dataset are stored.

    Images are stored in their own size if all have the same size and it is smaller than the network's
    input: resized, CIFAR-100 would be 49 times as large. Images are read up to the first other size.
    """
    sizes: set[tuple[int, int]] = set()
    for split in splits:
        for _, content in split.inputs.read():
            try:
                image, _ = _picture(content)
            except MemoryError:
                raise
            except Exception:  # noqa: S112 (decoders raise many types; `decode_images` reports them)
                continue
            sizes.add((image.height, image.width))
            if len(sizes) > 1 or not resize.enlarges(image.height, image.width):
                return Transform(resize)
    return Transform(resize, *sizes)


def _picture(content: Content) -> tuple[Image.Image, list[str]]:
    """Return the first frame of an image in 8-bit RGB, and what is odd about it."""
    if content == b"" or (isinstance(content, Path) and content.stat().st_size == 0):
        raise ValueError("it is empty")
    try:
        with Image.open(io.BytesIO(content) if isinstance(content, bytes) else content) as opened:
            pages = getattr(opened, "n_frames", 1)
            if opened.format == "TIFF" and pages > 1:
                raise ValueError(f"{pages} pages; allowed: one, so save each page as an image")
            if "transparency" in opened.info and opened.tile and opened.tile[0].args in _OTHER_BITS:
                raise ValueError("a transparent colour; save it with an alpha channel")
            animated = pages > 1 and opened.format not in _ONE_PICTURE
            image = _rgb(ImageOps.exif_transpose(opened), opened)
            # Before it is resized: interpolation overshoots at edges.
            dark = bool(np.max(image.getextrema()) < _FEW_LEVELS)
            return image, [_ANIMATED] * animated + [_DARK] * dark
    except UnidentifiedImageError:
        raise ValueError(found_pointer(content) or "of no format that Pillow reads") from None


def _rgb(image: Image.Image, file: Image.Image) -> Image.Image:
    """Convert an image of any mode to 8-bit RGB; transparent pixels become white.

    Pillow's own conversion would clip levels above 255, and show transparent pixels.

    Args:
        image: to convert.
        file: the same image as opened, with its format and tags.

    Raises:
        ValueError: the mode has no known range.
    """
    tags = getattr(file, "tag_v2", {})
    # Older versions of Pillow, and its reader of PGM, give 16-bit images the mode of 32 bits.
    deep = image.mode.startswith("I;16") or (image.mode == "I" and file.format in ("PNG", "PPM"))
    signed = _SIGNED in tags.get(_SAMPLE_FORMAT, ())
    inverted = deep and tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO
    if signed or inverted or (image.mode in ("I", "F") and not deep):
        raise ValueError(
            f"pixels of mode {image.mode}, whose darkest and brightest levels are not known; save it with 8 "
            "or 16 bits, without signs, and zero as black"
        )
    if deep:
        (bits, *_) = tags.get(_BITS_PER_SAMPLE, (16,))
        levels = np.asarray(image).astype(np.float64) * (255 / (2**bits - 1))
        image = Image.fromarray(np.rint(levels).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


@dataclass(frozen=True)
class EncodedImages:
    """The images of one split, in order."""

    read: Callable[[], Iterable[tuple[str, Content]]]
    """Yields name and content of the images."""


def decode_images(split: Split, transform: Transform, path: Path) -> tuple[Split, list[str]]:
    """Decode a split into a .npy file.

    Args:
        split: to decode.
        transform: the decoding.
        path: of the file; its name is that of the split.

    Returns:
        The split without corrupt images, and the reason for each corrupt image.

    Raises:
        DatasetError: the disk is too small for the pixels.
    """
    total = len(split.labels)
    errors: dict[int, str] = {}
    done, odd = 0, Counter[str]()

    def blocks() -> Iterator[Pixels]:
        nonlocal done
        advance = progress(f"{path.stem} images", total)
        yield np.empty((0, *transform.shape), np.uint8)
        for chunk, remarks in _decoded(split.inputs, transform):
            rows = [each for each in chunk if not isinstance(each, str)]
            errors.update(
                (done + at, each) for at, each in enumerate(chunk) if isinstance(each, str)
            )
            odd.update(remarks)
            done += len(chunk)
            if rows:
                yield np.stack(rows)
            advance(len(chunk))

    write_array(path, blocks(), total)
    for remark, images in odd.items():
        log.warning("%s: %d of %d images %s", path.stem, images, total, remark)
    return split.without(list(errors), path), list(errors.values())


_Chunk = tuple[list[Pixels | str], list[str]]
"""Pixels or an error for each of some images, and all that is odd about them."""


def _decoded(images: EncodedImages, transform: Transform) -> Iterator[_Chunk]:
    """Yield chunks of decoded images, in order; Pillow decodes outside of Python's lock."""
    remaining = iter(images.read())
    threads = min(os.cpu_count() or 1, _MOST_THREADS)
    pending: deque[Future[_Chunk]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        while chunk := list(islice(remaining, _CHUNK)):
            pending.append(pool.submit(_decode, transform, chunk))
            # Limits memory, and keeps the threads busy.
            if len(pending) == 2 * threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _decode(transform: Transform, chunk: Sequence[tuple[str, Content]]) -> _Chunk:
    """Return the pixels or the error of every image, and what is odd about them."""
    results: list[Pixels | str] = []
    odd: list[str] = []
    for name, content in chunk:
        try:
            pixels, remarks = transform.with_remarks(content)
            results.append(pixels)
            odd += remarks
        except MemoryError:
            raise
        except Exception as error:  # decoders raise many types for broken files
            results.append(f"{name}: not an image that can be read ({error})")
    return results, odd


def first_corrupt(split: Split, resize: Resize) -> list[str]:
    """Decode the first image of every class, and return the errors."""
    places = set(np.unique(split.labels, return_index=True)[1].tolist())
    first = [each for place, each in enumerate(split.inputs.read()) if place in places]
    return [each for each in _decode(Transform(resize), first)[0] if isinstance(each, str)]


LAYOUT, UNIT_LAYOUT = "<split>/<class>/<image>", "<split>/<class>/<unit>/<image>"
_FOLDER = re.compile("^([^/]+)/")  # what unit: folder stands for
_SPLITS = {"train": "train", "test": "t10k"}
_BYTES = 8
"""Code of bytes in the header of an IDX file."""


# -- folders ---------------------------------------------------------------------------------


def load_folder(source: FolderSource, unit: str | None = None) -> examples.LabelledData:
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
    kept = examples.stratified_share(
        labels, lambda place: [images[place].name], source.train_share, source.seed
    )
    train = [images[place] for place in kept]
    if source.test_from_train is None:
        test = folder.images([source.test_folder], classes)
    else:
        names = [image.unit or image.name for image in train]
        cut = source.test_from_train, source.seed, unit is not None
        parts = examples.cut_test_set(names, labels[kept], *cut)
        train, test = ([train[place] for place in places] for places in parts)
    if ignored := sorted(folder.ignored):
        log.warning(
            "%s: ignored what is hidden, or in no class (%s): %s",
            folder.root, count(len(ignored), "file"), shorten(ignored),
        )  # fmt: skip
    origin = f"folder {folder.root.name}"
    return examples.LabelledData(_split(train), _split(test), classes, origin, ignored=ignored)


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
                            f"{file}: found no file; allowed: {LAYOUT}, or with unit: folder {UNIT_LAYOUT}"
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
        if found is None or not (name := examples.unit_name(found[1] or "")):
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
            layout = UNIT_LAYOUT if self.unit is _FOLDER else LAYOUT
            raise DatasetError(f"{missing}: no such folder; allowed: {layout}")
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


def load_idx(source: IdxSource, size: int) -> examples.LabelledData:
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
    labels, test_labels, classes = examples.encode_labels(train, test)
    kept = examples.stratified_share(labels, lambda row: (row,), source.train_share, source.seed)
    return examples.LabelledData(
        train=Split(images, labels, train.where).only(kept),
        test=Split(test_images, test_labels, test.where),
        classes=classes,
        origin=str(folder),
    )


def _idx_split(
    folder: Path, split: str, size: int
) -> tuple[npt.NDArray[np.uint8], examples.LabelColumn]:
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
    return images[..., None], examples.LabelColumn(str(labels_file), "", labels.tolist(), where)


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
    with examples.reading(file):
        require_content(file)
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
            content = stream.read()
        magic, *shape = struct.unpack_from(f">{1 + axes}I", content)
        array = np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * axes)
        if magic != _BYTES << 8 | axes:
            raise ValueError(f"it is no IDX file of bytes with {axes} axes")
        return file, array.reshape(shape)
