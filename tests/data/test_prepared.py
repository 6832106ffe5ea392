"""Prepared datasets are read as written, their damage is reported, and their duplicates are counted."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from tests.data.pictures import section

from dpsweep.base import files
from dpsweep.data import DatasetError, PreparedDataset, Split, write_prepared
from dpsweep.data.prepare import prepare
from dpsweep.data.prepared import Resize, find_duplicates

Images = npt.NDArray[np.uint8]


def make(count: int, seed: int) -> Split:
    random = np.random.default_rng(seed)
    inputs = random.integers(0, 256, (count, 4, 5, 3), dtype=np.uint8)
    return Split(inputs, np.arange(count, dtype=np.int64) % 3)


def write(folder: Path, train: Split, test: Split, **changes: Any) -> PreparedDataset:
    facts: dict[str, Any] = {"name": "toys", "title": "Toys", "source": "random numbers"}
    facts |= {"revision": None, "classes": ["ball", "car", "doll"]}
    return write_prepared(folder, train=train, test=test, **(facts | changes))


def test_arrays_and_blocks_are_read_as_written(tmp_path: Path) -> None:
    train, test = make(10, 0), make(4, 1)
    written = write(tmp_path / "a", train, test)
    opened = PreparedDataset.open(tmp_path / "a")
    assert opened.metadata == written.metadata
    np.testing.assert_array_equal(opened.train_inputs, train.inputs)
    np.testing.assert_array_equal(opened.test_labels, test.labels)
    assert opened.metadata.train_counts == (4, 3, 3)
    assert opened.metadata.test_counts == (2, 1, 1)
    assert opened.metadata.shape == (4, 5, 3)
    with pytest.raises(ValueError, match="read-only"):
        opened.train_inputs[0] = 0
    # Neither blocks nor names change the checksum.
    blocks = Split(iter(np.split(train.inputs, [3, 4])), train.labels)
    in_blocks = write(tmp_path / "b", blocks, test, title="Other", name="other")
    np.testing.assert_array_equal(in_blocks.train_inputs, train.inputs)
    assert in_blocks.metadata.checksum == opened.metadata.checksum


def test_checksum_depends_on_every_array_and_on_how_images_are_resized(tmp_path: Path) -> None:
    train, test = make(12, 0), make(6, 1)
    shifted = Split(train.inputs, np.roll(train.labels, 1))
    other_test = Split(test.inputs, np.roll(test.labels, 1))
    variants: list[tuple[Split, Split, dict[str, Any]]] = [
        *((train, test, {}), (make(12, 5), test, {}), (shifted, test, {})),
        *((train, make(6, 5), {}), (train, other_test, {}), (test, train, {})),
    ]
    sizes = [Resize(size=size, interpolation="bicubic") for size in (8, 9)]
    variants += [(train, test, {"resize": each}) for each in sizes]
    made = [write(tmp_path / str(i), *two, **keys) for i, (*two, keys) in enumerate(variants)]
    assert len({each.metadata.checksum for each in made}) == len(variants)
    assert made[-1].metadata.resize == sizes[-1]
    # Metadata without ``resize`` stay the same, so trials keep their keys and outputs stay current.
    assert "resize" not in json.loads((tmp_path / "0" / "metadata.json").read_text())


def test_an_interrupted_write_leaves_the_earlier_dataset(tmp_path: Path) -> None:
    before = write(tmp_path / "toys", make(10, 0), make(4, 1)).metadata

    def dying() -> Iterator[Images]:
        yield np.zeros((2, 4, 5, 3), np.uint8)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "toys", make(9, 0), Split(dying(), np.zeros(4, np.int64)))
    assert PreparedDataset.open(tmp_path / "toys").metadata == before
    assert [each.name for each in tmp_path.iterdir()] == ["toys"]


def edit(folder: Path, old: str, new: str) -> None:
    path = folder / "metadata.json"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def swap(folder: Path) -> None:
    (folder / "train_inputs.npy").write_bytes((folder / "test_inputs.npy").read_bytes())


def flip(name: str, place: int) -> Callable[[Path], object]:
    """Return a function that flips a bit in the data of an array."""

    def change(folder: Path) -> None:
        path = folder / f"{name}.npy"
        content = bytearray(path.read_bytes())
        content[place if place < 0 else place - np.load(path).nbytes] ^= 1
        path.write_bytes(content)

    return change


def add_key(folder: Path) -> None:
    """Add a key to the metadata as a later version may."""
    file = folder / "metadata.json"
    files.write_checked_json(file, files.read_checked_json(file) | {"more": 1})


PICKLED = np.array([{}] * 10, dtype=object)
ARRAYS = ("train_inputs", "train_labels", "test_inputs", "test_labels")
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no folder": (shutil.rmtree, r"metadata\.json is missing"),
    "a truncated array": (lambda folder: os.truncate(folder / "train_inputs.npy", 700), "damaged"),
    "a missing array": (lambda folder: (folder / "test_labels.npy").unlink(), "is missing"),
    "an array of another split": (swap, r"train_inputs\.npy .*metadata\.json says"),
    "pickled labels": (lambda folder: np.save(folder / "train_labels.npy", PICKLED), "damaged"),
    "truncated metadata": (lambda folder: os.truncate(folder / "metadata.json", 200), r"a\.json: damaged: "),
    "another class": (lambda folder: edit(folder, "ball", "bell"), r"^\S+a\.json: damaged or edited"),
    "metadata of another form": (add_key, r"^\S+/metadata\.json: damaged: more: Extra .*, found 1$"),
    **{
        f"bit {place} of {name}": (flip(name, place), rf"{name}\.npy .*metadata\.json says")
        for name in ARRAYS
        for place in (0, -1)
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGES)
def test_opening_detects_damage(tmp_path: Path, kind: str) -> None:
    change, message = DAMAGES[kind]
    write(tmp_path / "toys", make(10, 0), make(4, 1))
    change(tmp_path / "toys")
    with pytest.raises(DatasetError, match=message) as raised:
        PreparedDataset.open(tmp_path / "toys")
    assert raised.value.remake == (tmp_path / "toys" / "metadata.json",)


def images(*shape: int) -> Images:
    return np.zeros(shape, np.uint8)


LABELS, FOUR = np.array([0, 1, 2]), np.arange(4) % 3
KINDS = "allowed: both uint8 .* with 1 or 3 channels"
# Inputs and labels, for training only or for both splits, and the message.
REFUSED: list[tuple[Any, Any, bool, str]] = [
    (images(3, 4, 5, 3), np.array([0, 1, 3]), False, "train labels: found int64 .*, 0, 1, 3; allowed"),
    (images(3, 4, 5, 3), LABELS / 1, False, r"found float64 \(3,\), .*; allowed: integers"),
    (images(2, 4, 5, 3), LABELS, False, "2 inputs for 3 labels"),
    (iter([]), LABELS, False, "train_inputs.npy: 0 inputs"),
    (iter([images(1, 4, 5, 3), images(2, 4, 5, 1)]), LABELS, False, "inputs must have one type and shape"),
    (images(3, 9, 9, 3), LABELS, False, "a test input uint8 .*; allowed: both"),
    (images(0, 4, 5, 3), LABELS[:0], False, "one example or more"),
    (np.zeros((4, 4, 5, 3), np.float32), FOUR, True, KINDS),
]  # fmt: skip


@pytest.mark.parametrize(("inputs", "labels", "both", "message"), REFUSED)
def test_inconsistent_inputs_and_labels_are_refused(
    tmp_path: Path, inputs: Any, labels: Any, both: bool, message: str
) -> None:
    split = Split(inputs, labels)
    with pytest.raises(DatasetError, match=message):
        write(tmp_path / "toys", split, split if both else make(4, 1))
    assert not list(tmp_path.iterdir())


# -- the study ----------------------------------------------------------------------------------


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Return a folder in which one of three test cats and one of three test dogs are training images.

    One has another name there, one another file format.
    """
    grey = {"train": range(0, 60, 10), "test": [0, 105, 115, 125, 135, 50]}
    for split, levels in grey.items():
        for number, level in enumerate(levels):
            folder = tmp_path / "pets" / split / ("cat" if number < 3 else "dog")
            folder.mkdir(parents=True, exist_ok=True)
            suffix = "bmp" if (split, level) == ("test", 50) else "png"
            Image.new("RGB", (9, 7), (level, 0, 0)).save(folder / f"{split}{number}.{suffix}")
    return tmp_path / "pets"


def made(pets: Path, train: int = 6, test: int = 6, **keys: Any) -> PreparedDataset:
    dataset = section(pets, train, test).model_copy(update=keys)
    return prepare("pets", dataset, pets.parent / "out")


CAT, DOG = "test/cat/test0.png = train/cat/train0.png", "test/dog/test5.bmp = train/dog/train5.png"


def test_duplicate_images_are_counted_and_named(
    pets: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert made(pets).metadata.duplicates == (CAT, DOG)
    said = "2 of 6 test examples have the pixels of a training example"
    assert (
        f"pets: {said}, so they do not measure accuracy on unseen data: {CAT}, {DOG}" in caplog.text
    )
    # Also if other images are corrupt.
    for name in ("test/cat/test1.png", "train/dog/train3.png"):
        (pets / name).write_bytes(b"no image")
    assert made(pets, 5, 5, corrupt="skip").metadata.duplicates == (CAT, DOG)


def test_dataset_is_prepared_as_declared_or_refused(pets: Path) -> None:
    for key, found in {"classes": 2, "train_size": 6, "test_size": 6}.items():
        message = rf"datasets\.pets\.{key}: the study says {found + 1}, {found} found"
        with pytest.raises(DatasetError, match=message):
            made(pets, **{key: found + 1})


def test_duplicates_are_refused_on_request(pets: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"datasets\.pets: 2 of 6 .*\n.*duplicates: warn"):
        made(pets, duplicates="refuse")
    assert not (tmp_path / "out" / "metadata.json").exists()
    for name in (CAT, DOG):
        (pets / name.partition(" =")[0]).unlink()
    made(pets, 6, 4, duplicates="refuse")
    # Metadata without duplicates do not change.
    assert "duplicates" not in (tmp_path / "out" / "metadata.json").read_text()


def test_a_duplicate_may_be_the_last_of_the_hashes() -> None:
    train, test = np.array([9, 3, 5], np.uint64), np.array([9, 10, 2, 5], np.uint64)
    found = find_duplicates(train, test, "train {}".format, "test {}".format)
    assert found == ["test 0 = train 0", "test 3 = train 2"]
