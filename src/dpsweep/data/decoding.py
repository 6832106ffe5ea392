"""Decoding of images into one file of pixels: in threads, with bounded memory."""

import io
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from dpsweep.base.files import found_pointer
from dpsweep.data.examples import Split
from dpsweep.data.prepared import DatasetError, Resize
from dpsweep.data.write import progress, write_array

log = logging.getLogger(__name__)

Content = bytes | Path
"""An encoded image, or its file."""
Pixels = npt.NDArray[np.uint8]

_CHUNK = 32
"""Number of images that a thread decodes at a time."""
_MOST_THREADS = 16
_FEW_LEVELS = 17
"""Levels of 12-bit numbers that were saved with 16 bits and are scaled to 8."""
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
        return self.first_frame(content)[0]

    def first_frame(self, content: Content) -> tuple[Pixels, bool]:
        """Return pixels, uint8 of ``shape``, and whether they are the first frame of an animation."""
        image, animated = _picture(content)
        if self.stored is None:
            size = self.resize.size
            height, width, top, left = self.resize.geometry(image.height, image.width)
            if width * height > _MOST_PIXELS:
                raise ValueError(f"too narrow to crop: {image.width} x {image.height} pixels")
            method = Image.Resampling[self.resize.interpolation.upper()]
            image = image.resize((width, height), method)
            image = image.crop((left, top, left + size, top + size))
        return np.asarray(image), animated


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


def _picture(content: Content) -> tuple[Image.Image, bool]:
    """Return the first frame of an image in 8-bit RGB, and whether there are others."""
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
            return _rgb(ImageOps.exif_transpose(opened), opened), animated
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
        DatasetError: there are more or fewer images than labels, or the disk is too small for the pixels.
    """
    examples = len(split.labels)
    errors: dict[int, str] = {}
    done = dark = animations = 0

    def blocks() -> Iterator[Pixels]:
        nonlocal done, dark, animations
        advance = progress(f"{path.stem} images", examples)
        yield np.empty((0, *transform.shape), np.uint8)
        for chunk, animated in _decoded(split.inputs, transform):
            rows = [each for each in chunk if not isinstance(each, str)]
            errors.update(
                (done + at, each) for at, each in enumerate(chunk) if isinstance(each, str)
            )
            dark += sum(row.max() < _FEW_LEVELS for row in rows)
            animations += animated
            done += len(chunk)
            if rows:
                yield np.stack(rows)
            advance(len(chunk))

    write_array(path, blocks(), examples)
    if done != examples:
        raise DatasetError(f"{path.stem}: {done} images for {examples} labels")
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


_Chunk = tuple[list[Pixels | str], int]
"""Pixels or an error for each of some images, and the number of animations among them."""


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
