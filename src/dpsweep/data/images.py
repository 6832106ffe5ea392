"""Encoded images to one file of pixels: in parallel, in bounded memory, and resumable."""

import io
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

from dpsweep.base.files import fingerprint, found_pointer
from dpsweep.data.examples import Split
from dpsweep.data.prepared import DatasetError
from dpsweep.data.resize import Resize
from dpsweep.data.unfinished import UnfinishedArray

Content = bytes | Path
"""An encoded image, or the file that holds it."""
Pixels = npt.NDArray[np.uint8]

_CHUNK = 32
"""Images that a process decodes at a time."""
_BLOCK = 512
"""Images between two records of how far a split is."""
_MOST_PROCESSES = 16
_MOST_PIXELS = 2**27
"""Of an image whose shorter side is resized."""

# Values of the EXIF tag Orientation of a picture that is turned by a quarter.
_ON_ITS_SIDE = frozenset({5, 6, 7, 8})
# Tags of TIFF, and a value of the second.
_SIDES = (256, 257)  # width and height
_BITS_PER_SAMPLE, _PHOTOMETRIC, _SAMPLE_FORMAT = 258, 262, 339
_WHITE_IS_ZERO, _SIGNED = 0, 2


@dataclass(frozen=True)
class Transform:
    """From an encoded image to RGB pixels."""

    resize: Resize
    """to the size that a network reads"""
    stored: tuple[int, int] | None = None
    """height and width of images that are stored as they are, to be resized with their batch"""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return (height, width, 3) of the pixels."""
        return (*(self.stored or (self.resize.size, self.resize.size)), 3)

    def __call__(self, content: Content) -> Pixels:
        """Return uint8 of this shape."""
        if content == b"" or (isinstance(content, Path) and content.stat().st_size == 0):
            raise ValueError("it is empty")
        try:
            with Image.open(_stream(content)) as opened:
                hidden = _hidden(content, opened)
                image = _rgb(ImageOps.exif_transpose(opened), opened)
        except UnidentifiedImageError:
            raise ValueError(found_pointer(content) or "of no format that Pillow reads") from None
        if hidden is not None:
            image.paste("white", mask=hidden)
        if self.stored is not None:
            if (image.height, image.width) != self.stored:
                raise ValueError(f"{image.width} x {image.height} pixels, unlike its header")
            return np.asarray(image)
        size = self.resize.size
        height, width, top, left = self.resize.geometry(image.height, image.width)
        if width * height > _MOST_PIXELS:
            raise ValueError(f"too narrow to crop: {image.width} x {image.height} pixels")
        resized = image.resize((width, height), Image.Resampling[self.resize.interpolation.upper()])
        if (height, width) == (size, size):
            return np.asarray(resized)
        return np.asarray(resized.crop((left, top, left + size, top + size)))


def make_transform(resize: Resize, *splits: Split) -> Transform:
    """Choose how the images of a dataset are stored.

    Images of one size that is smaller than the network's input are stored as they are: resized,
    CIFAR-100 would be 49 times as large. Their headers are read for that, up to the first image
    of another size.
    """
    sizes: set[tuple[int, int]] = set()
    for split in splits:
        for _, content in split.inputs.read(0):
            if (size := _size(content)) is None:
                continue  # corrupt; decoding will say so
            sizes.add(size)
            if len(sizes) > 1 or not resize.enlarges(*size):
                return Transform(resize)
    return Transform(resize, *sizes)


def _size(content: Content) -> tuple[int, int] | None:
    """Return height and width of an image as it is seen; None where its header cannot be read."""
    try:
        with Image.open(_stream(content)) as opened:
            on_its_side = opened.getexif().get(ExifTags.Base.Orientation, 1) in _ON_ITS_SIDE
            # Pillow has turned the size of a TIFF already.
            tags = getattr(opened, "tag_v2", {})
            width, height = (
                tags.get(tag, side) for tag, side in zip(_SIDES, opened.size, strict=True)
            )
    except MemoryError:
        raise
    except Exception:  # decoders meet broken files with all kinds of exceptions
        return None
    return (width, height) if on_its_side else (height, width)


def _stream(content: Content) -> io.BytesIO | Path:
    return io.BytesIO(content) if isinstance(content, bytes) else content


def _rgb(image: Image.Image, file: Image.Image) -> Image.Image:
    """Convert an image of any mode to 8-bit RGB; what is transparent becomes white.

    Pillow itself would cut levels above 255 off, and show what transparency hides.

    Args:
        image: to convert.
        file: the same as it was opened: it knows its format.

    Raises:
        ValueError: the mode has no known range.
    """
    tags = getattr(file, "tag_v2", {})
    # Older versions of Pillow, and its reader of PGM, give 16 bits the mode of 32.
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
    """Mask the pixels of the colour that a PNG calls transparent, where Pillow misreads it.

    A PNG names the colour as its pixels are stored, with 2, 4 or 16 bits; Pillow compares it with 8 bits.

    Args:
        content: encoded.
        file: the same, opened and not yet read.
    """
    again: Any  # an image of a file, whose type Pillow does not tell
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
            # Read as little-endian, big-endian numbers of 16 bits give their lower bytes.
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

    read: Callable[[int], Iterable[tuple[str, Content]]]
    """Gives name and content of the images from a position on."""
    identity: Any
    """Plain values that change when the images do."""


def decode_images(
    split: Split, transform: Transform, unfinished: Path, name: str
) -> tuple[Split, list[str]]:
    """Decode a split into a file, going on from where an earlier call was stopped.

    Args:
        split: what to decode.
        transform: how.
        unfinished: the folder of what is not finished.
        name: names the files, and what progress says.

    Returns:
        The split without the images that could not be decoded, and what was wrong with those.

    Raises:
        DatasetError: the disk is too small for the pixels.
    """
    unfinished.mkdir(parents=True, exist_ok=True)
    images, examples, path = split.inputs, len(split.labels), unfinished / f"{name}.npy"
    identity = fingerprint(
        [transform.resize.model_dump(), transform.stored, images.identity, examples]
    )
    pixels = UnfinishedArray(path, np.dtype(np.uint8), transform.shape, examples, identity)
    with pixels.writing("images"):
        remaining = _decoded(images, transform, pixels.done, examples)
        while block := list(islice(remaining, _BLOCK)):
            pixels.append(block)
        if pixels.done != examples:
            raise DatasetError(f"{name}: {pixels.done} images for {examples} labels")
    places = [place for place, _ in pixels.corrupt]
    return split.without(places, path), [what for _, what in pixels.corrupt]


# -- decoding --------------------------------------------------------------------------------


def _decoded(
    images: EncodedImages, transform: Transform, start: int, count: int
) -> Iterator[Pixels | str]:
    """Yield pixels, or what is wrong with an image, in order, from a position on, of ``count`` in all."""
    remaining = iter(images.read(start))
    if count - start <= _BLOCK:
        # Starting processes would take longer.
        yield from _decode(transform, list(remaining))
        return
    processes = min(os.cpu_count() or 1, _MOST_PROCESSES)
    pending: deque[Future[list[Pixels | str]]] = deque()
    # A forked process would inherit the locks of this one's threads, but not the threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, _start_process) as pool:
        while chunk := list(islice(remaining, _CHUNK)):
            pending.append(pool.submit(_decode, transform, chunk))
            # As many are in memory as keep the processes busy.
            if len(pending) == 2 * processes:
                yield from pending.popleft().result()
        while pending:
            yield from pending.popleft().result()


def _decode(transform: Transform, chunk: Sequence[tuple[str, Content]]) -> list[Pixels | str]:
    """Return the pixels of every image, or what is wrong with it."""
    results: list[Pixels | str] = []
    for name, content in chunk:
        try:
            results.append(transform(content))
        except MemoryError:
            raise
        except Exception as error:
            # Decoders meet broken files with all kinds of exceptions.
            results.append(f"{name}: not an image that can be read ({error})")
    return results


def first_corrupt(split: Split, resize: Resize) -> list[str]:
    """Decode the first image of every class: what is wrong with those that cannot be read."""
    _, places = np.unique(split.labels, return_index=True)
    first = [next(iter(split.inputs.read(int(place)))) for place in places]
    return [each for each in _decode(Transform(resize), first) if isinstance(each, str)]


def _start_process() -> None:
    """Leave interrupts to the process that collects the pixels, and end when it does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)
