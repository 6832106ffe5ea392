import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpsweep.data import DatasetError
from dpsweep.data.docstrings import _package_names, load_docstrings
from dpsweep.data.examples import LabelledData
from dpsweep.study.config import DocstringsSource

ALPHABET = "abcdefghijklmnopqrstuvwxyz"


def write_package(folder: Path, name: str, count: int, *, topic: str) -> None:
    """A package whose import would fail, with one function a docstring."""
    functions = [
        f'def f{i}():\n    """{ALPHABET[i % 26]}{i} is about {topic}, says {name}.core and '
        f'{name.upper()}.\n\n    It {"is told at length " * 3}.\n\n    >>> {name}.run()\n    """\n'
        for i in range(count)
    ]
    (folder / name / "inner").mkdir(parents=True)
    (folder / name / "tests").mkdir()
    (folder / name / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (folder / name / "broken.py").write_text("def (:\n")
    for place in range(0, count, 10):
        inner = "inner/" if place >= count // 2 else ""
        file = folder / name / f"{inner}part{place}.py"
        file.write_text("\n".join(functions[place : place + 10]))
    (folder / name / "tests" / "test_it.py").write_text(
        f'"""{"Of the tests, which are no part of a package. " * 3}"""\n'
    )


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_package(tmp_path, "planets", 60, topic="orbits")
    write_package(tmp_path, "recipes", 60, topic="soup")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def load(*modules: str, **changes: Any) -> LabelledData:
    settings = {"train_per_class": 20, "test_per_class": 5} | changes
    made = load_docstrings(DocstringsSource(kind="docstrings", modules=list(modules), **settings))
    list(made.train.inputs)  # they are read when they are asked for
    return made


def test_texts_are_labelled_by_their_module(packages: Path) -> None:
    made = load("planets", "recipes")
    assert made.classes == ["planets", "recipes"]
    for split, per_class in ((made.train, 20), (made.test, 5)):
        assert np.bincount(split.labels).tolist() == [per_class, per_class]
        topics = ["soup" in text for text in split.inputs]
        assert topics == (split.labels == 1).tolist()
        assert all(("orbits" in text) != ("soup" in text) for text in split.inputs)
        # In random order.
        assert split.labels.tolist() != sorted(split.labels)


def test_names_of_the_packages_and_code_are_taken_out(packages: Path) -> None:
    made = load("planets", "recipes")
    for text in (*made.train.inputs, *made.test.inputs):
        assert "planets" not in text.lower()
        assert "recipes" not in text.lower()
        assert ">>>" not in text
        assert "\n" not in text
        assert text.count("is told at length") == 3


def test_nul_characters_are_taken_out(packages: Path) -> None:
    for file in packages.rglob("part*.py"):
        file.write_text(file.read_text().replace("is about", "is\\0 about"))
    made = load("planets", "recipes")
    assert all("is about" in text and "\0" not in text for text in made.train.inputs)


def test_short_names_are_taken_out_as_words_only() -> None:
    names = _package_names(["numpy", "other"])
    words = [
        "np.array(3)",
        "and",
        "input",
        "of",
        "an",
        "(np)",
        "npy",
        "file",
        "by",
        "Numpy-dev",
        "another",
    ]
    kept = [word for word in words if not names.search(word)]
    assert kept == ["and", "input", "of", "an", "npy", "file", "by"]


def test_train_and_test_share_no_text(packages: Path) -> None:
    made = load("planets", "recipes", train_per_class=40, test_per_class=15)
    assert len({*made.train.inputs, *made.test.inputs}) == 110
    # Nothing is imported for it, and tests are no part of a package.
    assert not {"planets", "recipes"} & set(sys.modules)
    assert not any("tests" in text for text in made.train.inputs)


def test_copies_count_once(packages: Path) -> None:
    # The 60 texts under another name: what one class takes is gone.
    (packages / "recipes2").mkdir()
    for path in (packages / "recipes").rglob("part*.py"):
        (packages / "recipes2" / f"{path.parent.name}{path.name}").write_text(path.read_text())
    with pytest.raises(DatasetError, match="recipes2 has 15 that can be used; 45 are needed"):
        load("recipes", "recipes2", train_per_class=40, test_per_class=5)


def test_modules_inside_packages(packages: Path) -> None:
    made = load("planets.inner", "recipes.part0", train_per_class=6, test_per_class=2)
    numbers: list[list[int]] = [[], []]
    for text, label in zip(made.train.inputs, made.train.labels, strict=True):
        numbers[label].append(int(text.split()[0][1:]))
    inside, single = numbers
    assert min(inside) >= 30
    assert max(single) < 10


def test_it_is_a_function_of_the_seed(packages: Path) -> None:
    code = (
        "from dpsweep.data.docstrings import load_docstrings as load\n"
        "from dpsweep.study.config import DocstringsSource as S\n"
        "made = load(S(kind='docstrings', modules=['planets', 'recipes'], train_per_class=20,"
        " test_per_class=5, seed={seed}))\n"
        "print(*made.train.inputs, *made.test.inputs, made.train.labels.tolist())"
    )

    def run(seed: int, hash_seed: str) -> str:
        path = os.pathsep.join([str(packages), *sys.path])
        environment = os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": hash_seed}
        return subprocess.run(
            [sys.executable, "-c", code.format(seed=seed)],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    first = run(0, "1")
    assert first == run(0, "2")
    assert first != run(1, "1")


def test_what_is_not_installed_or_too_small(packages: Path) -> None:
    with pytest.raises(DatasetError, match=r"no Python source of planetz is installed"):
        load("planetz", "recipes")
    with pytest.raises(DatasetError, match=r"no Python source of planets\.outer is installed"):
        load("planets.outer", "recipes")
    with pytest.raises(DatasetError, match=r"planets has 60 that can be used; 70 are needed"):
        load("planets", "recipes", train_per_class=60, test_per_class=10)


def test_revision_is_the_versions() -> None:
    made = load("asyncio", "numpy.lib", train_per_class=5, test_per_class=1)
    assert made.revision == f"Python {sys.version.split()[0]}, numpy {np.__version__}"
