"""Rendered digits and letters: the public data for pretraining the demo's backbones.

Glyphs of matplotlib's fonts are slanted, rotated, stretched, bent, and drawn with strokes of varying width.
Then they are processed like the handwritten digits: the glyph fills the height of a bitmap of four times the
size, and pixels count the ink of 4 x 4 blocks. No private example is used, only the format of
`dpsweep.demo.glyphs`.

A signed distance field gives the stroke widths: another threshold of the distance to the outline draws the
same glyph bolder or lighter.
"""

import string
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpsweep.base.errors import DpsweepError
from dpsweep.demo import Generated, Part
from dpsweep.study.datasets import DigitsSource, GlyphsSource

# Text fonts with all ASCII letters and digits. The other Computer Modern files have symbols at the codes of
# letters, or old-style figures.
FONTS = (
    *(f"DejaVuSans{style}.ttf" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSansMono{style}.ttf" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{style}.ttf" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{style}.ttf" for style in ("", "Bol", "Italic", "BolIta")),
    *(f"cm{style}10.ttf" for style in ("r", "b", "ss", "ti", "tt")),
)

_CHARACTERS = string.digits + string.ascii_letters
_MASTER_SIZE = 64
_MASTER_HEIGHT = 40
_BLOCK = 4
_CHUNK = 2048

# Ranges of the random changes. Lengths are shares of the glyph's height.
_ROTATION = 0.2
"""Standard deviation, radians."""
_SHEAR = 0.35
_STRETCH = (-0.15, 0.25)
"""Mean and standard deviation of the logarithm of width over height."""
_STROKE = (0.06, 0.15)
"""Range of half the width of a stroke."""
_BEND = 0.05
_BEND_GRID = 4
_LARGEST_WIDTH = 0.75
"""Widest glyph, as a share of the image."""


@dataclass(frozen=True)
class _Masters:
    """Undistorted glyphs, one for each (character, font)."""

    distance: npt.NDArray[np.float32]
    """(masters, 64, 64): distance to the outline in pixels, positive inside"""
    outline: list[npt.NDArray[np.float64]]
    """points (x, y) of the convex hull, relative to the centre"""
    height: npt.NDArray[np.float64]
    """of the glyph, pixels"""
    half_stroke: npt.NDArray[np.float64]
    """of the glyph's widest stroke, pixels"""


def load_glyphs(source: GlyphsSource, size: int) -> Generated:
    """Return rendered glyphs, one class for each character; iterating draws them.

    Inputs are blocks of uint8 (examples, size, size, 1), in random order. Equal arguments give equal
    images.

    Args:
        source: characters, numbers of images, and the seed of the random changes and their order.
        size: height and width of an image, pixels.

    Raises:
        DpsweepError: a font is missing, or a character is not an ASCII letter or digit.
    """
    classes = list(source.characters)
    if not set(classes) <= set(_CHARACTERS) or len(set(classes)) != len(classes):
        raise DpsweepError(
            f"glyphs: found characters {source.characters!r}; allowed: ASCII letters and digits, each "
            "once"
        )
    fonts = _font_paths()

    def drawn(per_class: int, seed: np.random.SeedSequence) -> Part:
        random = np.random.default_rng(seed)
        labels = random.permutation(np.repeat(np.arange(len(classes)), per_class))
        chosen = labels * len(fonts) + random.integers(len(fonts), size=len(labels))
        return _render(source.characters, fonts, chosen, size, random), labels

    train_seed, test_seed = np.random.SeedSequence(source.seed).spawn(2)
    return Generated(
        train=drawn(source.train_per_class, train_seed),
        test=drawn(source.test_per_class, test_seed),
        classes=classes,
        origin="rendered from the fonts of matplotlib",
        revision=version("matplotlib"),
    )


def _render(
    characters: str,
    fonts: tuple[Path, ...],
    chosen: npt.NDArray[np.int64],
    size: int,
    random: np.random.Generator,
) -> Iterator[npt.NDArray[np.uint8]]:
    masters = _draw_masters(characters, fonts)
    for start in range(0, len(chosen), _CHUNK):
        yield _transform(masters, chosen[start : start + _CHUNK], size, random)[..., None]


def _transform(
    masters: _Masters, chosen: npt.NDArray[np.int64], size: int, random: np.random.Generator
) -> npt.NDArray[np.uint8]:
    """Draw each chosen master with random changes: uint8 (len(chosen), size, size)."""
    from scipy.ndimage import map_coordinates  # noqa: PLC0415

    count = len(chosen)
    angle = random.normal(0, _ROTATION, count)
    shear = random.uniform(-_SHEAR, _SHEAR, count)
    stretch = np.exp(random.normal(*_STRETCH, count))
    cosine, sine = np.cos(angle), np.sin(angle)
    one, zero = np.ones(count), np.zeros(count)
    rotate = np.array([[cosine, -sine], [sine, cosine]])
    slant = np.array([[stretch, shear], [zero, one]])
    # (count, 2, 2): from master pixels to an image before scaling
    affine = np.einsum("ijn,jkn->nik", rotate, slant)

    height = masters.height[chosen]
    half_stroke = masters.half_stroke[chosen]
    # A stroke loses at most 30 % of its width, so thin strokes do not disappear.
    threshold = np.minimum(
        half_stroke - random.uniform(*_STROKE, count) * height, 0.3 * half_stroke
    )

    corners = [affine[row] @ masters.outline[master].T for row, master in enumerate(chosen)]
    low = np.array([points.min(axis=1) for points in corners]) + threshold[:, None]
    high = np.array([points.max(axis=1) for points in corners]) - threshold[:, None]
    centre = (low + high) / 2
    extent = high - low
    scale = np.maximum(extent[:, 1], extent[:, 0] / _LARGEST_WIDTH)

    pixels = size * _BLOCK
    axis = (np.arange(pixels) + 0.5) / pixels - 0.5
    grid = np.stack(np.meshgrid(axis, axis, indexing="xy"))
    target = np.broadcast_to(grid, (count, 2, pixels, pixels)) + _bends(count, pixels, random)
    placed = target * scale[:, None, None, None] + centre[:, :, None, None]
    source = np.einsum("nij,njyx->niyx", np.linalg.inv(affine), placed) + (_MASTER_SIZE - 1) / 2
    layer = np.broadcast_to(chosen[:, None, None], (count, pixels, pixels))
    distance = map_coordinates(
        masters.distance,
        np.stack([layer, source[:, 1], source[:, 0]]),
        order=1,
        mode="nearest",
        output=np.float32,
    )
    ink = distance > threshold[:, None, None]
    counts = ink.reshape(count, size, _BLOCK, size, _BLOCK).sum(axis=(2, 4))
    images: npt.NDArray[np.uint8] = np.rint(counts * (255 / INK_LEVELS)).astype(np.uint8)
    return images


def _bends(count: int, pixels: int, random: np.random.Generator) -> npt.NDArray[np.float64]:
    """Draw smooth random displacements (count, 2, pixels, pixels), as shares of the image size."""
    knots = random.normal(0, _BEND, (count, 2, _BEND_GRID, _BEND_GRID))
    position = np.linspace(0, _BEND_GRID - 1, pixels)[:, None] - np.arange(_BEND_GRID)
    weight = np.exp(-(position**2))
    weight /= weight.sum(axis=1, keepdims=True)
    bends: npt.NDArray[np.float64] = np.einsum(
        "yi,ncij,xj->ncyx", weight, knots, weight, optimize=True
    )
    return bends


@lru_cache(maxsize=1)
def _draw_masters(characters: str, paths: tuple[Path, ...]) -> _Masters:
    from PIL import Image, ImageDraw, ImageFont  # noqa: PLC0415
    from scipy.ndimage import distance_transform_edt  # noqa: PLC0415
    from scipy.spatial import ConvexHull  # noqa: PLC0415

    fonts = []
    for path in paths:
        # Capitals of all fonts get the same height.
        trial = ImageFont.truetype(str(path), _MASTER_HEIGHT)
        left, top, right, bottom = trial.getbbox("H")
        fonts.append(
            ImageFont.truetype(str(path), round(_MASTER_HEIGHT * _MASTER_HEIGHT / (bottom - top)))
        )
    distances, outlines, heights, strokes = [], [], [], []
    for character in characters:
        for font in fonts:
            image = Image.new("L", (_MASTER_SIZE, _MASTER_SIZE))
            left, top, right, bottom = font.getbbox(character)
            corner = ((_MASTER_SIZE - left - right) / 2, (_MASTER_SIZE - top - bottom) / 2)
            ImageDraw.Draw(image).text(corner, character, fill=255, font=font)
            inside = np.asarray(image) > 127
            distance = distance_transform_edt(inside) - distance_transform_edt(~inside)
            points = np.argwhere(inside)[:, ::-1].astype(np.float64) - (_MASTER_SIZE - 1) / 2
            distances.append(distance.astype(np.float32))
            outlines.append(points[ConvexHull(points).vertices])
            heights.append(float(np.ptp(points[:, 1]) + 1))
            strokes.append(float(distance.max()))
    return _Masters(np.stack(distances), outlines, np.array(heights), np.array(strokes))


def _font_paths() -> tuple[Path, ...]:
    from matplotlib import get_data_path  # noqa: PLC0415

    folder = Path(get_data_path()) / "fonts" / "ttf"
    missing = [font for font in FONTS if not (folder / font).is_file()]
    if missing:
        raise DpsweepError(
            f"glyphs: {folder} lacks {', '.join(missing)}. These fonts ship with matplotlib: install "
            "it from its wheel (pip install --force-reinstall matplotlib), or put the files there"
        )
    return tuple(folder / font for font in FONTS)


_SIZE = 8
"""Height and width, pixels."""
INK_LEVELS = 16
"""The largest block count; it becomes 255."""


def load_digits(source: DigitsSource, size: int = _SIZE) -> Generated:
    """Return a stratified split of all or some digits.

    Inputs are uint8 (examples, 8, 8, 1): ``round(255 * count / 16)``. The split depends only on ``seed``
    and ``test_share``, so no variant of the dataset trains on a test image of another variant. With all
    ten digits there are ``ceil(test_share * 1797)`` test images.

    Class k of K keeps ``imbalance ** (-k / (K - 1))`` of its training images: a long tail as in
    Cui et al. 2019 (arXiv:1901.05555). The test set is not reduced.

    Args:
        source: which digits, and how many of them.
        size: height and width according to the study, pixels.

    Raises:
        DpsweepError: the size is not 8.
    """
    # Importing scikit-learn takes a second, and only this dataset needs it.
    from sklearn import datasets  # noqa: PLC0415
    from sklearn.model_selection import train_test_split  # noqa: PLC0415

    if size != _SIZE:
        raise DpsweepError(
            f"image_size: found {size}, allowed: {_SIZE}, the size of the images of {source.kind}"
        )
    images = datasets.load_digits()
    inputs = np.rint(images.images * (255 / INK_LEVELS)).astype(np.uint8)[..., None]
    train_inputs, test_inputs, train_digits, test_digits = train_test_split(
        inputs,
        images.target,
        test_size=source.test_share,
        stratify=images.target,
        random_state=source.seed,
    )
    kept = []
    for label, digit in enumerate(source.digits):
        share = source.train_share * source.imbalance ** (-label / (len(source.digits) - 1))
        members = np.flatnonzero(train_digits == digit)
        kept.append(members[: max(1, round(share * len(members)))])
    train = np.sort(np.concatenate(kept))
    test = np.flatnonzero(np.isin(test_digits, source.digits))
    # searchsorted works because the digits of the source are ascending.
    return Generated(
        train=(train_inputs[train], np.searchsorted(source.digits, train_digits[train])),
        test=(test_inputs[test], np.searchsorted(source.digits, test_digits[test])),
        classes=list(map(str, source.digits)),
        origin="scikit-learn, load_digits",
        revision=version("scikit-learn"),
    )
