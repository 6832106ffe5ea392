"""A user's own folder of images."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dpsweep.data import DatasetError
from dpsweep.data.prepare import prepare
from dpsweep.study.config import Dataset


def fill(folder: Path, count: int, level: int = 0) -> None:
    """Write images of one colour; the red of image i is level + i."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        Image.new("RGB", (6, 5), (level + number, 0, 0)).save(folder / f"{number:03}.png")


def section(path: Path, train: int, test: int, **changes: Any) -> Dataset:
    keys = ("crop", "corrupt", "train_counts")
    own = {key: changes.pop(key) for key in keys if key in changes}
    source = {"kind": "folder", "path": str(path), **changes}
    return Dataset.model_validate(
        {
            **{"title": "Pets", "classes": 2, "image_size": 4, "source": source},
            **{"train_size": train, "test_size": test},
            **own,
        }
    )


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Three cats, two dogs; one more of each to test with."""
    for split, cats, dogs, level in (("train", 3, 2, 0), ("test", 1, 1, 100)):
        fill(tmp_path / "pets" / split / "cat", cats, level)
        fill(tmp_path / "pets" / split / "dog", dogs, level + 50)
    return tmp_path / "pets"


def red(images: "np.typing.NDArray[np.uint8]") -> list[int]:
    return [int(level) for level in images[:, 0, 0, 0]]


def test_classes_are_folders(pets: Path, tmp_path: Path) -> None:
    made = prepare("pets", section(pets, 5, 2), tmp_path / "out")
    assert made.metadata.classes == ("cat", "dog")
    assert red(made.train_inputs) == [0, 1, 2, 50, 51]
    assert made.train_labels.tolist() == [0, 0, 0, 1, 1]
    assert red(made.test_inputs) == [100, 150]
    assert made.metadata.train_counts == (3, 2)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "metadata.json",
        "test_inputs.npy",
        "test_labels.npy",
        "train_inputs.npy",
        "train_labels.npy",
    ]


def test_splits_are_merged_and_folders_inside_classes_are_read(pets: Path, tmp_path: Path) -> None:
    fill(pets / "val" / "dog" / "2019" / "may", 2, 200)
    (pets / "val" / "dog" / ".DS_Store").write_bytes(b"junk")
    both = section(pets, 7, 2, train_folders=["train", "val"])
    made = prepare("pets", both, tmp_path / "out")
    assert red(made.train_inputs) == [0, 1, 2, 50, 51, 200, 201]
    assert made.train_labels.tolist() == [0, 0, 0, 1, 1, 1, 1]


def test_a_test_set_can_be_cut_from_one_folder(tmp_path: Path) -> None:
    fill(tmp_path / "pets" / "cat", 60)
    fill(tmp_path / "pets" / "dog", 20, 100)
    cut = section(tmp_path / "pets", 63, 17, train_folders=["."], test_from_train=0.25)
    made = prepare("pets", cut, tmp_path / "out")
    everything = red(made.train_inputs) + red(made.test_inputs)
    assert sorted(everything) == [*range(60), *range(100, 120)]
    for inputs, labels in (
        (made.train_inputs, made.train_labels),
        (made.test_inputs, made.test_labels),
    ):
        assert [int(level >= 100) for level in red(inputs)] == labels.tolist()


def test_corrupt_images_are_all_named_or_skipped(pets: Path, tmp_path: Path) -> None:
    (pets / "train" / "cat" / "001.png").write_bytes(b"not an image")
    whole = (pets / "test" / "dog" / "000.png").read_bytes()
    (pets / "test" / "dog" / "000.png").write_bytes(whole[:40])
    bad = ["train/cat/001.png: not an image", "test/dog/000.png: not an image"]
    with pytest.raises(DatasetError) as error:
        prepare("pets", section(pets, 5, 2), tmp_path / "out")
    for part in ("(2)", *bad, "corrupt: skip"):
        assert part in str(error.value)
    assert not (tmp_path / "out" / "metadata.json").exists()
    with pytest.raises(DatasetError, match=r"(?s)train_size: the study says 5, 4 found.*cat/001"):
        prepare("pets", section(pets, 5, 1, corrupt="skip"), tmp_path / "out")
    made = prepare("pets", section(pets, 4, 1, corrupt="skip"), tmp_path / "out")
    assert red(made.train_inputs) == [0, 2, 50, 51]
    assert made.train_labels.tolist() == [0, 0, 1, 1]
    assert made.metadata.train_size == 4
    assert [each[: len(name)] for each, name in zip(made.metadata.skipped, bad, strict=True)] == bad


def test_wrong_sizes_are_refused_before_anything_is_decoded(
    pets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("dpsweep.data.images.Transform.__call__")
    with pytest.raises(DatasetError, match="train_size: the study says 6, 5 found"):
        prepare("pets", section(pets, 6, 2), tmp_path / "out")


def test_counts_of_classes_are_compared(pets: Path, tmp_path: Path) -> None:
    for wrong in (2, [2, 3]):
        with pytest.raises(DatasetError, match="2 of class 'cat', 3 found"):
            prepare("pets", section(pets, 5, 2, train_counts=wrong), tmp_path / "out")
    prepare("pets", section(pets, 5, 2, train_counts=[3, 2]), tmp_path / "out")


@pytest.mark.parametrize(
    ("link", "target"),
    [("train/cat/x", "cat/000.png"), ("train/cat/x", "cat"), ("train/eel", "cat")],
)
def test_links_that_leave_the_folder_are_refused(
    pets: Path, tmp_path: Path, link: str, target: str
) -> None:
    fill(tmp_path / "private" / "cat", 1, 77)
    (pets / link).symlink_to(tmp_path / "private" / target)
    with pytest.raises(DatasetError, match="a symbolic link to"):
        prepare("pets", section(pets, 6, 2), tmp_path / "out")


def test_links_inside_the_folder_are_files(pets: Path, tmp_path: Path) -> None:
    (pets / "train" / "cat" / "x.png").symlink_to("000.png")
    made = prepare("pets", section(pets, 6, 2), tmp_path / "out")
    assert red(made.train_inputs) == [0, 1, 2, 0, 50, 51]


@pytest.mark.parametrize("name", ["../other", "a/b", "/etc", ".."])
def test_folders_of_the_study_are_names(pets: Path, name: str) -> None:
    with pytest.raises(ValueError, match="pattern"):
        section(pets, 5, 2, test_folder=name)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="nowhere: no such folder"):
        prepare("pets", section(tmp_path / "nowhere", 5, 2), tmp_path / "out")
