import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dpsweep.data import DatasetError, PreparedDataset, Split, write_prepared
from dpsweep.data.resize import Resize

Images = npt.NDArray[np.uint8]


def make(count: int, seed: int) -> Split:
    random = np.random.default_rng(seed)
    inputs = random.integers(0, 256, (count, 4, 5, 3), dtype=np.uint8)
    return Split(inputs, np.arange(count, dtype=np.int64) % 3)


def write(folder: Path, train: Split, test: Split, **changes: Any) -> PreparedDataset:
    facts: dict[str, Any] = {"name": "toys", "title": "Toys", "source": "random numbers"}
    facts |= {"revision": None, "classes": ["ball", "car", "doll"]}
    return write_prepared(folder, train=train, test=test, **(facts | changes))


def test_arrays_and_counts_come_back(tmp_path: Path) -> None:
    train, test = make(10, 0), make(4, 1)
    written = write(tmp_path, train, test)
    opened = PreparedDataset.open(tmp_path)
    assert opened.metadata == written.metadata
    np.testing.assert_array_equal(opened.train_inputs, train.inputs)
    np.testing.assert_array_equal(opened.test_labels, test.labels)
    assert opened.metadata.train_counts == (4, 3, 3)
    assert opened.metadata.test_counts == (2, 1, 1)
    assert opened.metadata.shape == (4, 5, 3)
    assert isinstance(opened.train_inputs, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        opened.train_inputs[0] = 0


def test_blocks_are_written_as_one_array(tmp_path: Path) -> None:
    train = make(10, 0)
    assert isinstance(train.inputs, np.ndarray)
    blocks = [train.inputs[:3], train.inputs[3:4], train.inputs[4:]]
    at_once = write(tmp_path / "a", train, make(4, 1))
    # Neither blocks nor names change the checksum.
    split = Split(iter(blocks), train.labels)
    in_blocks = write(tmp_path / "b", split, make(4, 1), title="Other", name="other")
    np.testing.assert_array_equal(at_once.train_inputs, in_blocks.train_inputs)
    assert at_once.metadata.checksum == in_blocks.metadata.checksum


def test_checksum_depends_on_every_array(tmp_path: Path) -> None:
    train, test = make(12, 0), make(6, 1)
    shifted = Split(train.inputs, np.roll(train.labels, 1))
    other_test = Split(test.inputs, np.roll(test.labels, 1))
    variants = [(train, test), (make(12, 5), test), (shifted, test), (train, make(6, 5))]
    variants += [(train, other_test), (test, train)]
    checksums = {
        write(tmp_path / str(number), *variant).metadata.checksum
        for number, variant in enumerate(variants)
    }
    assert len(checksums) == len(variants)


def test_checksum_depends_on_how_images_are_resized(tmp_path: Path) -> None:
    sizes = {None: None} | {size: Resize(size=size, interpolation="bicubic") for size in (8, 9)}
    made = {
        size: write(tmp_path / str(size), make(12, 0), make(6, 1), resize=resize).metadata
        for size, resize in sizes.items()
    }
    assert len({each.checksum for each in made.values()}) == 3
    assert PreparedDataset.open(tmp_path / "8").metadata.resize == sizes[8]
    # As it was before there were such images: trials keep their keys, outputs stay current.
    assert "resize" not in json.loads((tmp_path / "None" / "metadata.json").read_text())


def test_a_missing_folder_is_to_be_prepared(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"metadata\.json is missing") as raised:
        PreparedDataset.open(tmp_path / "toys")
    assert raised.value.remake == (tmp_path / "toys" / "metadata.json",)


def test_an_interrupted_write_leaves_no_dataset(tmp_path: Path) -> None:
    write(tmp_path, make(10, 0), make(4, 1))

    def dying() -> Iterator[Images]:
        yield np.zeros((2, 4, 5, 3), np.uint8)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, make(10, 0), Split(dying(), np.zeros(4, np.int64)))
    with pytest.raises(DatasetError, match=r"metadata\.json is missing"):
        PreparedDataset.open(tmp_path)
    assert not list(tmp_path.glob(".partial*"))


def edit(folder: Path, old: str, new: str) -> None:
    path = folder / "metadata.json"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def swap(folder: Path) -> None:
    (folder / "train_inputs.npy").write_bytes((folder / "test_inputs.npy").read_bytes())


PICKLED = np.array([{}] * 10, dtype=object)
DAMAGES: dict[str, Callable[[Path], object]] = {
    "a truncated array": lambda folder: os.truncate(folder / "train_inputs.npy", 700),
    "a missing array": lambda folder: (folder / "test_labels.npy").unlink(),
    "an array of another split": swap,
    "pickled labels": lambda folder: np.save(folder / "train_labels.npy", PICKLED),
    "truncated metadata": lambda folder: os.truncate(folder / "metadata.json", 200),
    "a missing key": lambda folder: edit(folder, '"classes"', '"kinds"'),
    "another class": lambda folder: edit(folder, "ball", "bell"),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_seen_when_opened(tmp_path: Path, kind: str) -> None:
    write(tmp_path, make(10, 0), make(4, 1))
    DAMAGES[kind](tmp_path)
    with pytest.raises(DatasetError) as raised:
        PreparedDataset.open(tmp_path)
    assert raised.value.remake == (tmp_path / "metadata.json",)


@pytest.mark.parametrize("name", ["train_inputs", "train_labels", "test_inputs", "test_labels"])
@pytest.mark.parametrize("place", [0, -1])
def test_every_flipped_bit_is_seen_when_opened(tmp_path: Path, name: str, place: int) -> None:
    write(tmp_path, make(10, 0), make(4, 1))
    path = tmp_path / f"{name}.npy"
    content = bytearray(path.read_bytes())
    header = len(content) - np.load(path).nbytes
    content[header + place if place >= 0 else place] ^= 1
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=rf"{name}\.npy .*metadata\.json says") as raised:
        PreparedDataset.open(tmp_path)
    assert raised.value.remake == (tmp_path / "metadata.json",)


def images(*shape: int) -> Images:
    return np.zeros(shape, np.uint8)


LABELS = np.array([0, 1, 2])
# Training inputs and labels, and what is said.
REFUSED: list[tuple[Any, Any, str]] = [
    (images(3, 4, 5, 3), np.array([0, 1, 3]), "train labels: found 0 to 3; allowed: 0 to 2"),
    (images(3, 4, 5, 3), np.array([0, 1, -1]), "found -1 to 1"),
    (images(3, 4, 5, 3), LABELS / 1, r"found float64 \(3,\); allowed: integers"),
    (images(2, 4, 5, 3), LABELS, "2 inputs for 3 labels"),
    (images(4, 4, 5, 3), LABELS, "4 inputs for 3 labels"),
    (iter([]), LABELS, "0 inputs for 3 labels"),
    (iter([images(1, 4, 5, 3), images(2, 4, 5, 1)]), LABELS, "all inputs must have one type and shape"),
    (images(3, 9, 9, 3), LABELS, "a test input uint8 .*; they must agree"),
    (images(0, 4, 5, 3), LABELS[:0], "there is no example"),
]  # fmt: skip


@pytest.mark.parametrize(("inputs", "labels", "message"), REFUSED)
def test_inconsistent_splits_are_refused(
    tmp_path: Path, inputs: Any, labels: Any, message: str
) -> None:
    with pytest.raises(DatasetError, match=message):
        write(tmp_path, Split(inputs, labels), make(4, 1))
    with pytest.raises(DatasetError):
        PreparedDataset.open(tmp_path)


@pytest.mark.parametrize(
    ("inputs", "changes", "message"),
    [
        (np.zeros((4, 4, 5, 3), np.float32), {}, "allowed: uint8 .* with 1 or 3 channels"),
        (images(4, 4, 5, 2), {}, "allowed: uint8 .* with 1 or 3 channels"),
        (images(4, 4, 5, 3), {"kind": "sound"}, "found kind 'sound'; allowed: image, text"),
        (images(4, 4, 5, 3), {"classes": ["ball", "car", "car"]}, "the class car twice; allowed: each once"),
    ],
)  # fmt: skip
def test_only_known_kinds_of_inputs_and_classes_are_accepted(
    tmp_path: Path, inputs: Any, changes: dict[str, Any], message: str
) -> None:
    split = Split(inputs, np.arange(4) % 3)
    with pytest.raises(DatasetError, match=message):
        write(tmp_path, split, split, **changes)
