"""The demo's data: handwritten digits, rendered letters, and docstrings of the installed packages."""

import os
import string
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from sklearn.datasets import load_digits as original_digits

from dpsweep.config import DigitsSource, DocstringsSource, GlyphsSource
from dpsweep.data import DatasetError, Split
from dpsweep.data import demo_glyphs as glyphs
from dpsweep.data.demo_digits import load_digits
from dpsweep.data.demo_docstrings import _package_names, load_docstrings
from dpsweep.data.demo_glyphs import load_glyphs
from dpsweep.data.examples import LabelledData

# -- digits --------------------------------------------------------------------------------------

INK = {round(255 * ink / 16) for ink in range(17)}


def digits(size: int = 8, **keys: Any) -> tuple[Split, Split]:
    made = load_digits(DigitsSource(kind="sklearn-digits", **keys), size)
    return made.train, made.test


def test_digits_are_partitioned_by_the_seed_alone() -> None:
    train, test = digits()
    assert (len(train.labels), len(test.labels)) == (1347, 450)
    inputs = np.concatenate([train.inputs, test.inputs])
    labels = np.concatenate([train.labels, test.labels])
    assert inputs.dtype == np.uint8 and inputs.shape[1:] == (8, 8, 1)
    assert set(np.unique(inputs)) == INK
    original = original_digits()
    ink = np.rint(inputs * (16 / 255)).reshape(len(inputs), -1)
    found, wanted = (
        sorted(map(tuple, np.column_stack(each).astype(int).tolist()))
        for each in ([ink, labels], [original.data, original.target])
    )
    assert found == wanted
    assert np.all(np.abs(np.bincount(test.labels) / np.bincount(labels) - 0.25) < 0.01)
    np.random.seed(123)
    again, other = digits()[0], digits(seed=1)[0]
    np.testing.assert_array_equal(train.inputs, again.inputs)
    assert not np.array_equal(train.inputs, other.inputs)
    with pytest.raises(DatasetError, match="image_size: found 16, allowed: 8, the size of"):
        digits(16)


def test_a_long_tail_of_some_digits() -> None:
    whole, every = digits()
    train, test = digits(digits=[3, 5, 9], train_share=0.5, imbalance=16)
    sizes = np.bincount(whole.labels)[[3, 5, 9]]
    shares = np.bincount(train.labels) / sizes
    np.testing.assert_allclose(shares, [0.5, 0.5 / 4, 0.5 / 16], atol=0.5 / sizes.min())
    # The images of a label are those of its digit; the test set is not thinned out.
    digits_of = dict(zip((image.tobytes() for image in whole.inputs), whole.labels, strict=True))
    for image, label in zip(train.inputs, train.labels, strict=True):
        assert digits_of[image.tobytes()] == [3, 5, 9][label]
    assert np.bincount(test.labels).tolist() == np.bincount(every.labels)[[3, 5, 9]].tolist()


# -- glyphs --------------------------------------------------------------------------------------


def drawn(characters: str, train: int, test: int = 1, seed: int = 0) -> tuple[Split, Split]:
    """Draw images of 8 x 8 pixels, so many of each class."""
    counts = {"train_per_class": train, "test_per_class": test}
    made = load_glyphs(GlyphsSource(kind="glyphs", characters=characters, seed=seed, **counts), 8)
    first, second = (
        Split(np.concatenate(list(each.inputs)), each.labels) for each in (made.train, made.test)
    )
    return first, second


def images(split: Split) -> "np.typing.NDArray[np.float64]":
    return split.inputs[..., 0].astype(float) / 255


def test_glyphs_have_the_declared_shape_and_balance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("sklearn.datasets.load_digits")  # no private image is read
    train, test = drawn("07aQ", 30, 5)
    assert train.inputs.shape == (120, 8, 8, 1)
    assert train.inputs.dtype == np.uint8
    assert np.bincount(train.labels).tolist() == [30] * 4
    assert np.bincount(test.labels).tolist() == [5] * 4
    assert set(np.unique(train.inputs)) == INK  # pixels count ink in blocks of 4 x 4


def test_rendering_is_a_function_of_the_seed() -> None:
    first, first_test = drawn("38", 40, 40, seed=3)
    np.random.seed(99)
    again, other = drawn("38", 40, 40, seed=3)[0], drawn("38", 40, 40, seed=4)[0]
    np.testing.assert_array_equal(images(first), images(again))
    assert not np.array_equal(images(first), images(other))
    assert not np.array_equal(images(first), images(first_test))


def test_glyphs_fill_the_height_stand_in_the_middle_and_vary() -> None:
    ink = images(drawn("2468", 200)[0])
    rows, columns = ink.max(axis=2) > 0, ink.sum(axis=1)
    # The top and bottom rows of nearly all images have ink, as in the digits.
    assert rows[:, [0, 7]].mean() > 0.8
    centre = (columns * np.arange(8)).sum(axis=1) / columns.sum(axis=1)
    assert abs(centre.mean() - 3.5) < 0.3
    # At most three quarters of the width, apart from the bends.
    assert columns[:, [0, 7]].mean() < 0.3 * columns[:, 3:5].mean()
    ones = images(drawn("1", 300)[0])
    amount = ones.mean(axis=(1, 2))
    assert np.quantile(amount, 0.9) > 1.5 * np.quantile(amount, 0.1)
    assert len(np.unique(ones, axis=0)) > 295


def test_all_fonts_have_all_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(mpl.get_data_path()) / "fonts" / "ttf"
    for font in glyphs.FONTS:
        charmap = mpl.ft2font.FT2Font(str(folder / font)).get_charmap()
        assert all(ord(character) in charmap for character in string.digits + string.ascii_letters)
    monkeypatch.setattr(glyphs, "FONTS", ("DejaVuSans.ttf", "Nowhere.ttf"))
    with pytest.raises(DatasetError, match=r"lacks Nowhere\.ttf.*matplotlib"):
        drawn("0", 1)


@pytest.mark.parametrize("characters", ["01é", "0 1", "00"])
def test_other_characters_are_refused(characters: str) -> None:
    with pytest.raises(DatasetError, match="allowed: ASCII letters and digits, each once"):
        drawn(characters, 1)


# -- docstrings ----------------------------------------------------------------------------------


def write_package(folder: Path, name: str, topic: str) -> None:
    """A package whose import would fail, with sixty functions that have a docstring each."""
    functions = [
        f'def f{i}():\n    """{string.ascii_lowercase[i % 26]}{i} is\\0 about {topic}, says {name}.core '
        f'and {name.upper()}.\n\n    It {"is told at length " * 3}.\n\n    >>> {name}.run()\n    """\n'
        for i in range(60)
    ]
    (folder / name / "inner").mkdir(parents=True)
    (folder / name / "tests").mkdir()
    (folder / name / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (folder / name / "broken.py").write_text("def (:\n")
    for place in range(0, 60, 10):
        file = folder / name / f"{'inner/' if place >= 30 else ''}part{place}.py"
        file.write_text("\n".join(functions[place : place + 10]))
    said = "Of the tests, which are no part of a package. " * 3
    (folder / name / "tests" / "test_it.py").write_text(f'"""{said}"""\n')


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_package(tmp_path, "planets", topic="orbits")
    write_package(tmp_path, "recipes", topic="soup")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def texts(*modules: str, **changes: Any) -> LabelledData:
    settings = {"train_per_class": 20, "test_per_class": 5} | changes
    made = load_docstrings(DocstringsSource(kind="docstrings", modules=list(modules), **settings))
    list(made.train.inputs)  # they are read when they are asked for
    return made


def test_texts_are_labelled_by_their_module(packages: Path) -> None:
    made = texts("planets", "recipes", train_per_class=40, test_per_class=15)
    assert made.classes == ["planets", "recipes"]
    for split, per_class in ((made.train, 40), (made.test, 15)):
        assert np.bincount(split.labels).tolist() == [per_class, per_class]
        assert ["soup" in text for text in split.inputs] == (split.labels == 1).tolist()
        assert all(("orbits" in text) != ("soup" in text) for text in split.inputs)
        assert split.labels.tolist() != sorted(split.labels)  # in random order
    together = [*made.train.inputs, *made.test.inputs]
    assert len(set(together)) == 110, "training and testing share no text"
    for text in together:
        # Without names of the packages, code, NUL characters and texts of tests.
        found = [
            each
            for each in ("planets", "recipes", ">>>", "\n", "\0", "of the tests")
            if each in text.lower()
        ]
        assert not found and "is about" in text and text.count("is told at length") == 3
    assert not {"planets", "recipes"} & set(sys.modules), "nothing is imported for it"


def test_short_names_are_taken_out_as_words_only() -> None:
    names = _package_names(["numpy", "other"])
    words = ["np.array(3)", "and", "input", "of", "an", "(np)", "npy", "by", "Numpy-dev", "another"]
    kept = [word for word in words if not names.search(word)]
    assert kept == ["and", "input", "of", "an", "npy", "by"]


def test_modules_inside_packages(packages: Path) -> None:
    made = texts("planets.inner", "recipes.part0", train_per_class=6, test_per_class=2)
    numbers: list[list[int]] = [[], []]
    for text, label in zip(made.train.inputs, made.train.labels, strict=True):
        numbers[label].append(int(text.split()[0][1:]))
    assert min(numbers[0]) >= 30 and max(numbers[1]) < 10


def test_texts_are_a_function_of_the_seed(packages: Path) -> None:
    first, other = (texts("planets", "recipes", seed=seed) for seed in (0, 1))
    assert list(first.train.inputs) != list(other.train.inputs)
    code = (
        "from dpsweep.data.demo_docstrings import load_docstrings as load\n"
        "from dpsweep.config import DocstringsSource as Source\n"
        "keys = {'modules': ['planets', 'recipes'], 'train_per_class': 20, 'test_per_class': 5}\n"
        "made = load(Source(kind='docstrings', **keys))\n"
        "print(*made.train.inputs, *made.test.inputs, *made.train.labels, sep='\\n')"
    )
    path = os.pathsep.join([str(packages), *sys.path])
    environment = os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": "7"}
    again = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
    labels = map(str, first.train.labels)
    assert again.splitlines() == [*first.train.inputs, *first.test.inputs, *labels]


def test_what_is_not_installed_or_too_small(packages: Path) -> None:
    with pytest.raises(DatasetError, match=r"no Python source of planetz is installed"):
        texts("planetz", "recipes")
    with pytest.raises(DatasetError, match=r"no Python source of planets\.outer is installed"):
        texts("planets.outer", "recipes")
    with pytest.raises(DatasetError, match=r"planets has 60 that can be used; 70 are needed"):
        texts("planets", "recipes", train_per_class=60, test_per_class=10)
    # The 60 texts under another name: copies count once, so what one class takes is gone.
    (packages / "recipes2").mkdir()
    for path in (packages / "recipes").rglob("part*.py"):
        (packages / "recipes2" / f"{path.parent.name}{path.name}").write_text(path.read_text())
    with pytest.raises(DatasetError, match="recipes2 has 15 that can be used; 45 are needed"):
        texts("recipes", "recipes2", train_per_class=40, test_per_class=5)


def test_revision_is_the_versions() -> None:
    made = texts("asyncio", "numpy.lib", train_per_class=5, test_per_class=1)
    assert made.revision == f"Python {sys.version.split()[0]}, numpy {np.__version__}"
