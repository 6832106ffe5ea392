"""Tests of the demo's data: handwritten digits, rendered letters, docstrings of installed packages."""

import string
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits as original_digits

from dpsweep.base.errors import DpsweepError
from dpsweep.data import Split
from dpsweep.data.examples import LabelledData
from dpsweep.data.prepare import load
from dpsweep.study.datasets import Dataset

INK = {round(255 * ink / 16) for ink in range(17)}


def made(kind: str, size: int | None = 8, **source: Any) -> LabelledData:
    sizes = {"classes": 2, "train_size": 1, "test_size": 1, "image_size": size}
    section = {"title": "Demo", "source": {"kind": kind} | source}
    return load(Dataset.model_validate(section | sizes))


# -- digits --------------------------------------------------------------------------------------


def test_digits_are_split_by_the_seed() -> None:
    data = made("sklearn-digits")
    train, test = data.train, data.test
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
    again, other = (made("sklearn-digits", seed=seed).train.inputs for seed in (0, 1))
    np.testing.assert_array_equal(train.inputs, again)
    assert not np.array_equal(train.inputs, other)


def test_long_tail_of_some_digits() -> None:
    whole = made("sklearn-digits")
    some = made("sklearn-digits", digits=[3, 5, 9], train_share=0.5, imbalance=16)
    sizes, tested = (np.bincount(each.labels)[[3, 5, 9]] for each in (whole.train, whole.test))
    shares = np.bincount(some.train.labels) / sizes
    np.testing.assert_allclose(shares, [0.5, 0.5 / 4, 0.5 / 16], atol=0.5 / sizes.min())
    # Images keep the label of their digit, and the test set is not reduced.
    digit = {
        image.tobytes(): label
        for image, label in zip(whole.train.inputs, whole.train.labels, strict=True)
    }
    found = [digit[image.tobytes()] for image in some.train.inputs]
    assert found == np.take([3, 5, 9], some.train.labels).tolist()
    assert np.bincount(some.test.labels).tolist() == tested.tolist()


# -- glyphs --------------------------------------------------------------------------------------


def drawn(characters: str, train: int, test: int = 1, seed: int = 0) -> list[Split]:
    """Draw images of 8 x 8 pixels, ``train`` and ``test`` of each class."""
    counts = {"train_per_class": train, "test_per_class": test}
    data = made("glyphs", characters=characters, seed=seed, **counts)
    return [
        replace(each, inputs=np.concatenate([*each.inputs])) for each in (data.train, data.test)
    ]


def test_glyphs_are_a_function_of_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("sklearn.datasets.load_digits")  # reading private images would fail
    train, test = drawn("07aQ", 30, 30, seed=3)
    assert train.inputs.shape == (120, 8, 8, 1) and train.inputs.dtype == np.uint8
    assert np.bincount(train.labels).tolist() == [30] * 4
    assert set(np.unique(train.inputs)) == INK  # pixels count ink in blocks of 4 x 4
    np.random.seed(99)
    again, other = drawn("07aQ", 30, 30, seed=3)[0], drawn("07aQ", 30, 5, seed=4)[0]
    np.testing.assert_array_equal(train.inputs, again.inputs)
    for each in (other, test):
        assert not np.array_equal(train.inputs, each.inputs)


def test_glyphs_fill_the_height_are_centred_and_vary() -> None:
    ink = drawn("2468", 100)[0].inputs[..., 0] / 255
    rows, columns = ink.max(axis=2) > 0, ink.sum(axis=1)
    # Nearly all images have ink in the top and bottom rows, as the digits do.
    assert rows[:, [0, 7]].mean() > 0.8
    centre = (columns * np.arange(8)).sum(axis=1) / columns.sum(axis=1)
    assert abs(centre.mean() - 3.5) < 0.3
    # Glyphs fill at most three quarters of the width, apart from the bends.
    assert columns[:, [0, 7]].mean() < 0.3 * columns[:, 3:5].mean()
    train = drawn("17", 300)[0]
    ones = train.inputs[train.labels == 0] / 255
    amount = ones.mean(axis=(1, 2, 3))
    assert np.quantile(amount, 0.9) > 1.5 * np.quantile(amount, 0.1)
    assert len(np.unique(ones, axis=0)) > 295


# -- docstrings ----------------------------------------------------------------------------------


def write_package(folder: Path, name: str, topic: str) -> None:
    """Write a package of sixty functions with docstrings; importing it raises an error."""
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
    docstring = "Of the tests, which are not part of a package. " * 3
    (folder / name / "tests" / "test_it.py").write_text(f'"""{docstring}"""\n')


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_package(tmp_path, "planets", topic="orbits")
    write_package(tmp_path, "recipes", topic="soup")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def texts(*modules: str, train: int = 20, test: int = 5) -> LabelledData:
    keys = {"train_per_class": train, "test_per_class": test}
    data = made("docstrings", None, modules=list(modules), **keys)
    list(data.train.inputs)  # texts are read lazily
    return data


def test_texts_are_labelled_by_their_module(packages: Path) -> None:
    data = texts("planets", "recipes", train=40, test=15)
    assert data.classes == ["planets", "recipes"]
    for split, per_class in ((data.train, 40), (data.test, 15)):
        assert np.bincount(split.labels).tolist() == [per_class, per_class]
        assert ["soup" in text for text in split.inputs] == (split.labels == 1).tolist()
        assert all(("orbits" in text) != ("soup" in text) for text in split.inputs)
        assert split.labels.tolist() != sorted(split.labels)  # in random order
    together = [*data.train.inputs, *data.test.inputs]
    assert len(set(together)) == 110, "training and testing share no text"
    unwanted = ("planets", "recipes", ">>>", "\n", "\0", "of the tests")
    for text in together:
        assert not [each for each in unwanted if each in text.lower()]
        assert "is about" in text and text.count("is told at length") == 3
    assert not {"planets", "recipes"} & set(sys.modules), "the packages are not imported"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"kind": "sklearn-digits", "size": 16}, "image_size: found 16, allowed: 8, the size of"),
        ({"modules": ["planetz", "recipes"]}, "no Python source of planetz is installed"),
        ({"modules": ["planets.outer", "recipes"]}, r"no Python source of planets\.outer is installed"),
        ({"modules": ["planets", "recipes"], "train_per_class": 60, "test_per_class": 10},
         "planets has 60 that can be used; 70 are needed"),
        # recipes2 is a copy of recipes: copies count once, so 15 of 60 texts remain.
        ({"modules": ["recipes", "recipes2"], "train_per_class": 40}, "recipes2 has 15 .*; 45 are needed"),
    ],
)  # fmt: skip
def test_invalid_sources_of_the_demo_are_refused(
    packages: Path, source: dict[str, Any], said: str
) -> None:
    (packages / "recipes2").mkdir()
    for path in (packages / "recipes").rglob("part*.py"):
        (packages / "recipes2" / f"{path.parent.name}{path.name}").write_text(path.read_text())
    counts = {} if "kind" in source else {"train_per_class": 20, "test_per_class": 5}
    with pytest.raises(DpsweepError, match=said):
        list(made(**{"kind": "docstrings"} | counts | source).train.inputs)
