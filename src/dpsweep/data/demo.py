"""Data that every machine has: handwritten digits, rendered letters, docstrings of the installed packages."""

import ast
import importlib.util
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from importlib.metadata import packages_distributions, version
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpsweep.base.errors import DpsweepError
from dpsweep.data.examples import LabelledData
from dpsweep.data.prepared import Labels, Split
from dpsweep.study.datasets import DigitsSource, DocstringsSource, GlyphsSource

# -- digits -----------------------------------------------------------------------------------

_SIZE = 8
"""Height and width, pixels."""
INK_LEVELS = 16
"""The largest block count; it becomes 255."""


def load_digits(source: DigitsSource, size: int = _SIZE) -> LabelledData:
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
    return LabelledData(
        train=Split(train_inputs[train], np.searchsorted(source.digits, train_digits[train])),
        test=Split(test_inputs[test], np.searchsorted(source.digits, test_digits[test])),
        classes=list(map(str, source.digits)),
        origin="scikit-learn, load_digits",
        revision=version("scikit-learn"),
    )


# -- glyphs -----------------------------------------------------------------------------------

# Text fonts with all ASCII letters and digits. The other Computer Modern files have symbols at the codes of
# letters, or old-style figures.
FONTS = (
    *(f"DejaVuSans{style}.ttf" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSansMono{style}.ttf" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{style}.ttf" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{style}.ttf" for style in ("", "Bol", "Italic", "BolIta")),
    *(f"cm{style}10.ttf" for style in ("r", "b", "ss", "ti", "tt")),
)


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


def load_glyphs(source: GlyphsSource, size: int) -> LabelledData:
    """Return rendered glyphs, one class for each character; iterating draws them.

    Glyphs of matplotlib's fonts are slanted, rotated, stretched, bent, and drawn with strokes of varying
    width. Then they are processed like the handwritten digits: the glyph fills the height of a bitmap of four
    times the size, and pixels count the ink of 4 x 4 blocks. No private example is used, only the format of
    `load_digits`.

    A signed distance field gives the stroke widths: another threshold of the distance to the outline draws
    the same glyph bolder or lighter.

    Inputs are blocks of uint8 (examples, size, size, 1), in random order. Equal arguments give equal
    images.

    Args:
        source: characters, numbers of images, and the seed of the random changes and their order.
        size: height and width of an image, pixels.
    """
    # Importing matplotlib takes a second, and only this dataset needs it.
    from matplotlib import get_data_path  # noqa: PLC0415

    classes = list(source.characters)
    fonts = tuple(Path(get_data_path(), "fonts", "ttf", font) for font in FONTS)

    def drawn(per_class: int, seed: np.random.SeedSequence) -> Split:
        random = np.random.default_rng(seed)
        labels = random.permutation(np.repeat(np.arange(len(classes)), per_class))
        chosen = labels * len(fonts) + random.integers(len(fonts), size=len(labels))
        return Split(_render(source.characters, fonts, chosen, size, random), labels)

    train_seed, test_seed = np.random.SeedSequence(source.seed).spawn(2)
    return LabelledData(
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


# -- docstrings -------------------------------------------------------------------------------

# Other names of packages in their docstrings.
_ALIASES = {
    "matplotlib": ("mpl", "plt", "pyplot"),
    "numpy": ("np",),
    "pandas": ("pd",),
    "scipy": ("sp",),
}
_SKIPPED_FOLDERS = {"test", "tests"}
_LEAST_CHARACTERS = 60
# Texts with the same beginning count as copies. The limit for each file gives every class many files.
_COMPARED_CHARACTERS = 80
_MOST_PER_FILE = 12
_distributions = cache(packages_distributions)
_DOCTEST = re.compile(r"^\s*(>>>|\.\.\.).*$", re.MULTILINE)


def load_docstrings(source: DocstringsSource) -> LabelledData:
    """Return texts in random order, with one class for each module of the source.

    The packages are parsed, never imported or run. Their names are removed, so the label must be predicted
    from the content. The same versions of the packages give the same dataset.

    The first iteration reads them. It raises DpsweepError if a module is not installed as source code, or
    has too few docstrings.
    """
    read = cache(partial(_read, source))
    random = np.random.default_rng([source.seed, len(source.modules)])

    def mixed(part: slice, per_class: int) -> Split:
        labels = np.repeat(np.arange(len(source.modules)), per_class)
        order = random.permutation(len(labels))
        return Split(_Texts(read, part, order), labels[order])

    return LabelledData(
        train=mixed(slice(source.train_per_class), source.train_per_class),
        test=mixed(slice(source.train_per_class, None), source.test_per_class),
        classes=list(source.modules),
        origin="docstrings of installed packages",
        revision=_versions(source.modules),
    )


@dataclass(frozen=True)
class _Texts:
    """The texts of one split."""

    read: Callable[[], list[list[str]]]
    """returns the texts of each class"""
    part: slice
    """the texts of each class that belong to this split"""
    order: Labels

    def __iter__(self) -> Iterator[str]:
        flat = [text for each in self.read() for text in each[self.part]]
        return (flat[place] for place in self.order)


def _read(source: DocstringsSource) -> list[list[str]]:
    """Return the texts of each class in random order.

    Raises:
        DpsweepError: a module is not installed as source code, or has too few docstrings.
    """
    needed = source.train_per_class + source.test_per_class
    names = _package_names(source.modules)
    seen: set[str] = set()
    texts: list[list[str]] = []
    for index, module in enumerate(source.modules):
        random = np.random.default_rng([source.seed, index])
        found = []
        for text in _texts(module, names, random):
            beginning = text[:_COMPARED_CHARACTERS].casefold()
            if beginning not in seen:
                seen.add(beginning)
                found.append(text)
            if len(found) == needed:
                break
        else:
            raise DpsweepError(
                f"docstrings: {module} has {len(found)} that can be used; {needed} are needed "
                "(train_per_class + test_per_class): ask for fewer, or leave it out"
            )
        texts.append([found[place] for place in random.permutation(needed)])
    return texts


def _texts(module: str, names: re.Pattern[str], random: np.random.Generator) -> Iterator[str]:
    """Yield the usable docstrings of a module, files in random order."""
    files = _files(module)
    for place in random.permutation(len(files)):
        texts = list(_docstrings(files[place]))
        for chosen in random.permutation(len(texts))[:_MOST_PER_FILE]:
            text = _one_line_text(texts[chosen], names)
            if len(text) >= _LEAST_CHARACTERS:
                yield text


def _files(module: str) -> list[Path]:
    """Return the source files of a module and of its submodules, without importing them."""
    package, *inner = module.split(".")
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:
        spec = None
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    path = Path(folders[0], *inner) if folders else None
    if path is not None and path.is_dir():
        found = [
            each
            for each in path.rglob("*.py")
            if not _SKIPPED_FOLDERS & set(each.relative_to(path).parts)
        ]
        return sorted(found, key=lambda each: each.relative_to(path).as_posix())
    if path is not None and path.with_suffix(".py").is_file():
        return [path.with_suffix(".py")]
    if not inner and spec is not None and spec.origin and spec.origin.endswith(".py"):
        return [Path(spec.origin)]
    raise DpsweepError(
        f"docstrings: no Python source of {module} is installed; install the package, or take it "
        "out of source.modules"
    )


def _docstrings(path: Path) -> Iterator[str]:
    with warnings.catch_warnings():
        # Ignore warnings about strings in the parsed code.
        warnings.simplefilter("ignore", SyntaxWarning)
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            return  # code for another version of Python
    documented = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
    for node in ast.walk(tree):
        if isinstance(node, documented) and (text := ast.get_docstring(node)):
            yield text


def _one_line_text(text: str, names: re.Pattern[str]) -> str:
    """Return a docstring in one line, without code examples and names of packages."""
    words = _DOCTEST.sub(" ", text.replace("\0", "")).split()
    return " ".join(word for word in words if not names.search(word))


def _package_names(modules: Sequence[str]) -> re.Pattern[str]:
    """Return a pattern that matches words with the name of a package in them."""
    packages = {module.split(".")[0] for module in modules}
    names = set(packages)
    for package in packages:
        names |= {*_ALIASES.get(package, ()), *_distributions().get(package, ())}
    # Short names must be whole words, because they occur in many other words.
    inside = "|".join(sorted(re.escape(name) for name in names if len(name) > 3))
    alone = "|".join(sorted(re.escape(name) for name in names if len(name) <= 3))
    nothing = "(?!)"
    return re.compile(
        rf"{inside or nothing}|(?<![^\W_])(?:{alone or nothing})(?![^\W_])", re.IGNORECASE
    )


def _versions(modules: Sequence[str]) -> str:
    found = {}
    for package in sorted({module.split(".")[0] for module in modules}):
        name = _distributions().get(package, ["Python"])[0]
        found[name] = sys.version.split()[0] if name == "Python" else version(name)
    return ", ".join(f"{name} {number}" for name, number in found.items())
