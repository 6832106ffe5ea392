"""Decoding of images into one file of pixels: parallel, with bounded memory."""

import io
import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from dpsweep.base.files import found_pointer
from dpsweep.data.examples import Split
from dpsweep.data.prepared import Resize
from dpsweep.data.write import write_rows

log = logging.getLogger(__name__)

Content = bytes | Path
"""An encoded image, or its file."""
Pixels = npt.NDArray[np.uint8]

_CHUNK = 32
"""Number of images that a process decodes at a time."""
_BLOCK = 512
"""Up to this number, images are decoded in one process."""
_MOST_PROCESSES = 16
_FEW_LEVELS = 17
"""Levels of 12-bit numbers that were saved with 16 bits and are scaled to 8."""
_MOST_PIXELS = 2**27
"""Limit of the resized image, before cropping."""

# Formats whose further pages are previews, depths or layers of the first.
_ONE_PICTURE = frozenset({"MPO", "PSD"})
# Values of the EXIF tag Orientation for a rotation by 90 degrees.
_ON_ITS_SIDE = frozenset({5, 6, 7, 8})
# Tags of TIFF, and values of two of them.
_SIDES = (256, 257)  # width and height
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
        """Return pixels, uint8 of ``shape``."""
        return self.first_frame(content)[0]

    def first_frame(self, content: Content) -> tuple[Pixels, bool]:
        """Return pixels, uint8 of ``shape``, and whether they are the first frame of an animation."""
        if content == b"" or (isinstance(content, Path) and content.stat().st_size == 0):
            raise ValueError("it is empty")
        try:
            with Image.open(_stream(content)) as opened:
                pages = getattr(opened, "n_frames", 1)
                if opened.format == "TIFF" and pages > 1:
                    raise ValueError(f"{pages} pages; allowed: one, so save each page as an image")
                animated = pages > 1 and opened.format not in _ONE_PICTURE
                hidden = _hidden(content, opened)
                image = _rgb(ImageOps.exif_transpose(opened), opened)
        except UnidentifiedImageError:
            raise ValueError(found_pointer(content) or "of no format that Pillow reads") from None
        if hidden is not None:
            image.paste("white", mask=hidden)
        if self.stored is not None:
            if (image.height, image.width) != self.stored:
                raise ValueError(f"{image.width} x {image.height} pixels, unlike its header")
            return np.asarray(image), animated
        size = self.resize.size
        height, width, top, left = self.resize.geometry(image.height, image.width)
        if width * height > _MOST_PIXELS:
            raise ValueError(f"too narrow to crop: {image.width} x {image.height} pixels")
        resized = image.resize((width, height), Image.Resampling[self.resize.interpolation.upper()])
        if (height, width) == (size, size):
            return np.asarray(resized), animated
        return np.asarray(resized.crop((left, top, left + size, top + size))), animated


def make_transform(resize: Resize, *splits: Split) -> Transform:
    """Choose how the images of a dataset are stored.

    Images are stored in their own size if all have the same size and it is smaller than the network's
    input: resized, CIFAR-100 would be 49 times as large. Headers are read up to the first other size.
    """
    sizes: set[tuple[int, int]] = set()
    for split in splits:
        for _, content in split.inputs.read():
            if (size := _size(content)) is None:
                continue  # corrupt; decoding reports it
            sizes.add(size)
            if len(sizes) > 1 or not resize.enlarges(*size):
                return Transform(resize)
    return Transform(resize, *sizes)


def _size(content: Content) -> tuple[int, int] | None:
    """Return height and width of an image after its EXIF rotation; None if its header is unreadable."""
    try:
        with Image.open(_stream(content)) as opened:
            on_its_side = opened.getexif().get(ExifTags.Base.Orientation, 1) in _ON_ITS_SIDE
            # Pillow has already rotated the size of a TIFF.
            tags = getattr(opened, "tag_v2", {})
            width, height = (
                tags.get(tag, side) for tag, side in zip(_SIDES, opened.size, strict=True)
            )
    except MemoryError:
        raise
    except Exception:  # decoders raise many types for broken files
        return None
    return (width, height) if on_its_side else (height, width)


def _stream(content: Content) -> io.BytesIO | Path:
    return io.BytesIO(content) if isinstance(content, bytes) else content


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
    if image.mode.startswith("I;16") or (image.mode == "I" and file.format in ("PNG", "PPM")):
        if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:
            raise ValueError("16-bit TIFF whose zero is white; save it with zero as black")
        (bits, *_) = tags.get(_BITS_PER_SAMPLE, (16,))
        levels = np.asarray(image).astype(np.float64) * (255 / (2**bits - 1))
        image = Image.fromarray(np.rint(levels).astype(np.uint8))
    elif image.mode in ("I", "F"):
        kind = "32-bit integers" if image.mode == "I" else "floating-point numbers"
        raise ValueError(
            f"its pixels are {kind}, whose darkest and brightest value are not known; save it "
            "with 8 or 16 bits"
        )
    elif _SIGNED in tags.get(_SAMPLE_FORMAT, ()):
        raise ValueError(
            "its pixels are signed integers, whose darkest value is not known; save it without signs"
        )
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image.convert("RGB")


def _hidden(content: Content, file: Any) -> Image.Image | None:
    """Return a mask of the transparent colour of a PNG, if Pillow would misread this colour; else None.

    A PNG stores the colour with the 2, 4 or 16 bits of its pixels, but Pillow compares it with 8 bits.

    Args:
        content: the encoded image.
        file: the same image, opened and not yet decoded.
    """
    again: Any  # Pillow has no type for it
    colour = file.info.get("transparency")
    if file.format != "PNG" or colour is None or not file.tile:
        return None
    match file.tile[0].args:
        case "L;2" | "L;4" as stored:
            file.info["transparency"] = colour * 255 // (2 ** int(stored[-1]) - 1)
            return None
        case "I;16B":
            parts = {"I;16B": [colour]}
        case "RGB;16B":
            # Read as little-endian, big-endian 16-bit numbers give their lower bytes.
            parts = {"RGB;16B": [each >> 8 for each in colour]}
            parts["RGB;16L"] = [each & 255 for each in colour]
        case _:
            return None
    del file.info["transparency"]
    equal = []
    for layout, wanted in parts.items():
        with Image.open(_stream(content)) as again:
            again.tile = [again.tile[0]._replace(args=layout)]
            pixels = np.asarray(ImageOps.exif_transpose(again))
        equal.append((np.atleast_3d(pixels) == wanted).all(axis=-1))
    return Image.fromarray(np.logical_and.reduce(equal))


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
    examples = len(split.labels)
    dark = animations = 0

    def blocks() -> Iterator[list[Pixels | str]]:
        nonlocal dark, animations
        for rows, animated in _decoded(split.inputs, transform, examples):
            dark += sum(not isinstance(row, str) and row.max() < _FEW_LEVELS for row in rows)
            animations += animated
            yield rows

    errors = write_rows(
        path, np.dtype(np.uint8), transform.shape, examples, blocks(), what="images"
    )
    if dark:
        log.warning(
            "%s: %d of %d images have no level from %d to 255: they are black, or have 12 bits or fewer of "
            "16, and should be stretched", path.stem, dark, examples, _FEW_LEVELS,
        )  # fmt: skip
    if animations:
        log.warning(
            "%s: %d of %d images are animations, of which the first frame is read",
            path.stem, animations, examples,
        )  # fmt: skip
    return split.without(list(errors), path), list(errors.values())


# -- decoding --------------------------------------------------------------------------------


_Chunk = tuple[list[Pixels | str], int]
"""Pixels or an error for each of some images, and the number of animations among them."""


def _decoded(images: EncodedImages, transform: Transform, count: int) -> Iterator[_Chunk]:
    """Yield chunks of ``count`` images, in order."""
    remaining = iter(images.read())
    if count <= _BLOCK:
        # Starting processes would take more time.
        yield _decode(transform, list(remaining))
        return
    processes = min(os.cpu_count() or 1, _MOST_PROCESSES)
    pending: deque[Future[_Chunk]] = deque()
    # A forked process would inherit the locks of threads, but not the threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, _start_process) as pool:
        while chunk := list(islice(remaining, _CHUNK)):
            pending.append(pool.submit(_decode, transform, chunk))
            # Limits memory, and keeps the processes busy.
            if len(pending) == 2 * processes:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _decode(transform: Transform, chunk: Sequence[tuple[str, Content]]) -> _Chunk:
    """Return the pixels or the error of every image, and the number of animations."""
    results: list[Pixels | str] = []
    animations = 0
    for name, content in chunk:
        try:
            pixels, animated = transform.first_frame(content)
            results.append(pixels)
            animations += animated
        except MemoryError:
            raise
        except Exception as error:  # decoders raise many types for broken files
            results.append(f"{name}: not an image that can be read ({error})")
    return results, animations


def first_corrupt(split: Split, resize: Resize) -> list[str]:
    """Decode the first image of every class, and return the errors."""
    places = set(np.unique(split.labels, return_index=True)[1].tolist())
    first = [each for place, each in enumerate(split.inputs.read()) if place in places]
    return [each for each in _decode(Transform(resize), first)[0] if isinstance(each, str)]


def _start_process() -> None:
    """Ignore interrupts, which the parent process handles, and end when the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)
