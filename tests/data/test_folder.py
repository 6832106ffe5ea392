"""Tests that folders ``<split>/<class>/<image>`` are read correctly, and others refused with one line."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data.pictures import fill, picture, red, section

from dpsweep.data import DatasetError, PreparedDataset
from dpsweep.data.images import load_folder
from dpsweep.data.prepare import prepare
from dpsweep.study.datasets import FolderSource
from dpsweep.study.fingerprints import source_fingerprint


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Write three cats and two dogs for training, and one of each for testing."""
    for split, cats, dogs, level in (("train", 3, 2, 0), ("test", 1, 1, 100)):
        fill(tmp_path / "pets" / split / "cat", cats, level)
        fill(tmp_path / "pets" / split / "dog", dogs, level + 50)
    return tmp_path / "pets"


def made(pets: Path, train: int = 5, test: int = 2, **keys: Any) -> PreparedDataset:
    return prepare("pets", section(pets, train, test, **keys), pets.parent / "out")


def cut(path: Path, **keys: Any) -> FolderSource:
    own = {"kind": "folder", "path": str(path), "train_folders": ["."], "test_from_train": 0.3}
    return FolderSource.model_validate(own | keys)


# -- folders that are read -----------------------------------------------------------------------


def test_classes_are_folders(pets: Path, tmp_path: Path) -> None:
    found = made(pets, train_counts=[3, 2])
    assert found.metadata.classes == ("cat", "dog")
    assert red(found.train_inputs) == [0, 1, 2, 50, 51]
    assert found.train_labels.tolist() == [0, 0, 0, 1, 1]
    assert red(found.test_inputs) == [100, 150]
    assert found.metadata.train_counts == (3, 2)
    arrays = [f"{split}_{what}.npy" for split in ("test", "train") for what in ("inputs", "labels")]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["metadata.json", *arrays]


def test_splits_are_merged_and_links_are_read(pets: Path) -> None:
    fill(pets / "val" / "dog", 2, 200)
    (pets / "train" / "cat" / "x.png").symlink_to("000.png")
    found = made(pets, 8, 2, source={"train_folders": ["train", "val"]})
    assert red(found.train_inputs) == [0, 1, 2, 0, 50, 51, 200, 201]
    assert found.train_labels.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_ignored_files_and_classes_without_test_images_are_reported(
    pets: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (pets / "train" / "cat" / os.fsdecode(b".\xe4")).touch()  # a hidden file may have any name
    (pets / "test" / "dog" / "000.png").unlink()
    assert made(pets, 5, 1).metadata.ignored == ("train/cat/.\ufffd",)
    assert "pets: no test example of dog" in caplog.text


def test_test_set_from_one_folder_does_not_change_with_a_new_image(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        fill(tmp_path / name, 60)

    def parts(**keys: Any) -> list[set[str]]:
        data = load_folder(cut(tmp_path, **keys))
        for split in (data.train, data.test):
            named = [name for name, _ in split.inputs.read()]
            assert [int(name.startswith("dog")) for name in named] == split.labels.tolist()
        return [{name for name, _ in split.inputs.read()} for split in (data.train, data.test)]

    before = parts()
    for new in ("000a", "030b", "zzz"):
        file = tmp_path / "cat" / f"{new}.png"
        file.write_bytes(picture(0))
        after = parts()
        assert [part - {f"cat/{new}.png"} for part in after] == before
        assert len(after[0] | after[1]) == 121
        file.unlink()
    tests = [parts(seed=seed)[1] for seed in range(20)]
    # 120 draws at 0.3 have a standard deviation of 5, so the mean of 20 has one of 1.1.
    assert abs(np.mean([len(each) for each in tests]) - 36) < 4
    assert tests[1] != tests[2]


# -- refused folders -----------------------------------------------------------------------------


def rename(old: str, new: str) -> Callable[[Path], Any]:
    return lambda pets: (pets / old).rename(pets / new)


def link(place: str, target: str) -> Callable[[Path], Any]:
    """Return a function that makes a link; ``~`` stands for a folder outside the pets' folder."""

    def make(pets: Path) -> None:
        fill(pets.parent / "private" / "cat", 1)
        (pets / place).symlink_to(target.replace("~", str(pets.parent / "private")))

    return make


def junk(name: bytes) -> Callable[[Path], Any]:
    return lambda pets: (pets / os.fsdecode(name)).write_bytes(b"junk")


def make_flat(pets: Path) -> None:
    for path in sorted(pets.rglob("*.png")):
        path.rename(pets / "train" / f"{path.parent.name}{path.parents[1].name}{path.name}")
    for name in ("cat", "dog"):
        (pets / "train" / name).rmdir()


def label_by_table(pets: Path) -> None:
    make_flat(pets)
    (pets / "train" / "metadata.csv").write_text("file_name,label\n000.png,cat\n")


REFUSED = {
    "no folder": (shutil.rmtree, "pets: no such folder; allowed: <split>/<class>/<image>"),
    "an empty class": (
        lambda pets: (pets / "train" / "bird").mkdir(),
        r"classes: the study says 2, 3 found\n  the classes are: bird, cat, dog\n"
        r"datasets\.pets: no training example of bird",
    ),
    "a class in capitals": (
        rename("test/dog", "test/Dog"),
        "test: found the classes Dog; allowed: those of the first training folder, cat, dog",
    ),
    "classes that differ in capitals": (
        lambda pets: fill(pets / "train" / "Cat", 1),
        "the classes are: Cat, cat, dog; nearly the same: 'Cat' and 'cat'",
    ),
    "one name in two forms of Unicode": (
        lambda pets: [fill(pets / "train" / name, 0) for name in ("caf\u00e9", "cafe\u0301")],
        "found the folders .* each class in one folder",
    ),
    "a name with a space": (lambda pets: fill(pets / "train" / "dog ", 0), "folders cat, dog, dog "),
    "a folder in a class": (
        lambda pets: fill(pets / "train" / "dog" / "2019", 2),
        "train/dog/2019: found no file; allowed: <split>/<class>/<image>",
    ),
    "a link to an image of others": (link("train/cat/x", "~/cat/000.png"), "x: found .* symbolic link"),
    "a link in the place of a class": (link("train/eel", "~/cat"), "eel: found .* symbolic link"),
    "a name that is not UTF-8": (junk(b"train/cat/k\xe4tzchen.png"), "found a name that is not UTF-8"),
    "labels in a table": (
        label_by_table,
        "train: found the folders nothing and the files metadata.csv, .* not read; allowed",
    ),
    "classes without images": (
        lambda pets: [each.unlink() for each in pets.glob("test/*/*")],
        "pets: found no image in test; allowed: one or more",
    ),
    "no test folder": (rename("test", "other"), "test: no such folder; allowed: <split>/<class>/<image>"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_invalid_folders_are_refused_before_decoding(
    pets: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, message = REFUSED[kind]
    change(pets)
    assert source_fingerprint(section(pets, 5, 2)), "the workflow reads this before the job runs"
    monkeypatch.delattr("dpsweep.data.images.Transform.__call__")  # decoding would fail
    with pytest.raises(DatasetError, match=rf"(?s)datasets\.pets.*{message}"):
        made(pets)


# -- hidden files --------------------------------------------------------------------------------


def test_hidden_files_are_neither_classes_nor_examples(pets: Path) -> None:
    source = section(pets, 5, 2)
    clean, fingerprint = made(pets).metadata, source_fingerprint(source)
    for place in ("", "train", "test", "train/cat", "test/dog"):
        for name in (".DS_Store", "._cat.png", ".snapshot/hourly/cat/0.png", ".Trash-1000/0.png"):
            file = pets / place / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(picture(9))
    assert made(pets).metadata.checksum == clean.checksum
    assert source_fingerprint(source) == fingerprint, "nothing is prepared again"
    (pets / "train" / "README.txt").touch()  # in no class
    ignored = load_folder(FolderSource(kind="folder", path=str(pets))).ignored
    hidden = (".DS_Store", ".Trash-1000", "._cat.png", ".snapshot")
    places = ("train", "test", "train/cat", "test/dog")
    wanted = {f"{place}/{name}" for place in places for name in hidden} | {"train/README.txt"}
    assert set(ignored) == wanted
