"""Tests of datasets of the hub and of local copies: reading, and refused copies."""

import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest
from datasets import ClassLabel, Dataset, Features, Image, Value
from pyarrow import parquet
from tests.data.pictures import LFS, offline, picture, red

from dpsweep.data import DatasetError, PreparedDataset
from dpsweep.data.prepare import prepare
from dpsweep.study.datasets import Dataset as Section

REVISION = "0123456789abcdef0123456789abcdef01234567"
FIRST = "{}-00000-of-00001.parquet".format


def save(folder: Path, split: str, labels: list[Any], first: int = 0, images: Any = None) -> None:
    """Write a split as one parquet file, as on the hub; the red of image i is first + i."""
    label = Value("string") if str in map(type, labels) else ClassLabel(names=["cat", "dog"])
    encoded = [{"bytes": picture((first + i) % 256), "path": None} for i in range(len(labels))]
    folder.mkdir(parents=True, exist_ok=True)
    features = Features({"img": Image(), "tag": label})
    content = {"img": images or encoded, "tag": labels}
    Dataset.from_dict(content, features=features).to_parquet(folder / FIRST(split))


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Write a local copy with three training images and two test images."""
    save(tmp_path / "raw", "train", [0, 1, 1])
    save(tmp_path / "raw", "test", [1, 0], first=100)
    return tmp_path / "raw"


def section(path: Path | None, train: int = 3, test: int = 2, **source: Any) -> Section:
    known = {"kind": "hub", "id": "someone/pets", "input_column": "img", "label_column": "tag"}
    place = {} if path is None else {"path": str(path)}
    sizes = {"train_size": train, "test_size": test, "image_size": 4, "classes": 2}
    return Section.model_validate({"title": "Pets", **sizes, "source": known | place | source})


def made(raw: Path, *sizes: int, **source: Any) -> PreparedDataset:
    return prepare("pets", section(raw, *sizes, **source), raw.parent / "out")


# -- datasets that are read ----------------------------------------------------------------------


def test_images_keep_their_labels_in_the_order_of_the_splits(raw: Path) -> None:
    save(raw, "validation", [1, 0], first=50)
    found = made(raw, 5, 2, train_splits=["train", "validation"])
    assert found.train_inputs.shape == (5, 4, 4, 3)
    assert red(found.train_inputs) == [0, 1, 2, 50, 51]
    assert found.train_labels.tolist() == [0, 1, 1, 1, 0]
    assert red(found.test_inputs) == [100, 101]
    assert found.metadata.classes == ("cat", "dog")
    # Channels keep their order.
    assert found.train_inputs[1, 0, 0].tolist() == [1, 254, 7]


def test_shares_are_stratified_and_keep_images_with_their_labels(raw: Path) -> None:
    labels = [0] * 60 + [1] * 20
    save(raw, "train", labels)
    save(raw, "test", labels)
    half = section(raw, 40, 20, train_share=0.5, test_share=0.25)
    found = prepare("pets", half, raw.parent / "out")
    assert (found.metadata.train_counts, found.metadata.test_counts) == ((30, 10), (15, 5))
    for split in ("train", "test"):
        levels = red(getattr(found, f"{split}_inputs"))
        assert [labels[level] for level in levels] == getattr(found, f"{split}_labels").tolist()
        assert len({*levels}) == len(levels)
    again = prepare("pets", half, raw.parent / "again")
    assert again.metadata.checksum == found.metadata.checksum


def test_classes_are_merged_into_coarser_ones(raw: Path) -> None:
    labels = ["dog", "cat", "ant", "dog"] * 5
    save(raw, "train", labels)
    save(raw, "test", ["cat", "ant"])
    coarser = {"pets": ["cat", "dog"], "insects": ["ant"]}
    found = made(raw, 16, 2, merge_classes=coarser, train_share=0.8)
    assert found.metadata.classes == ("pets", "insects")
    kept = red(found.train_inputs)
    assert found.train_labels.tolist() == [int(labels[level] == "ant") for level in kept]
    assert found.test_labels.tolist() == [0, 1]
    fine = section(raw, 16, 2, train_share=0.8).model_copy(update={"classes": 3})
    unmerged = prepare("fine", fine, raw.parent / "fine")
    # Without merging, the same examples are chosen.
    assert red(unmerged.train_inputs) == kept
    classes = unmerged.metadata.classes
    assert classes == ("ant", "cat", "dog")
    assert [classes[label] for label in unmerged.train_labels] == [labels[level] for level in kept]


def test_offline_dataset_comes_from_the_cache_or_the_error_has_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = offline(monkeypatch, tmp_path)
    online = section(None, 3, 1, revision=REVISION)
    command = rf"hf download someone/pets --repo-type dataset --revision {REVISION}"
    with pytest.raises(DatasetError, match=command):
        prepare("pets", online, tmp_path / "out")
    snapshot = cache / "datasets--someone--pets" / "snapshots" / REVISION
    save(snapshot, "train", [0, 1, 1])
    save(snapshot, "test", [1])
    found = prepare("pets", online, tmp_path / "out")
    assert (found.metadata.source, found.metadata.revision) == ("someone/pets", REVISION)
    assert red(found.train_inputs) == [0, 1, 2]


# -- refused copies ------------------------------------------------------------------------------


def write(name: str, content: str | bytes) -> Any:
    content = content.encode() if isinstance(content, str) else content
    return lambda raw: (raw / name).write_bytes(content)


def second_image(**image: Any) -> Any:
    """Return a function that replaces the second training image; {} stands for the folder of the copy."""

    def change(raw: Path) -> None:
        (raw.parent / "outside").write_bytes(picture(1))
        (raw / "link").symlink_to("../outside")
        (raw / "missing").write_bytes(picture(1))
        found = {"bytes": None, "path": None} | image
        found["path"] = found["path"] and found["path"].format(raw)
        save(raw, "train", [0, 1, 1], images=[{"bytes": picture(1), "path": None}, found, found])
        (raw / "missing").unlink()

    return change


def unchanged(raw: Path) -> None:
    """Leave a copy as it is."""


def without_rows(raw: Path) -> None:
    """Leave out the rows of the test split, as pandas and pyarrow write them."""
    table = parquet.read_table(raw / FIRST("test"))
    parquet.write_table(table.slice(0, 0), raw / FIRST("test"))


def merged(**classes: list[str]) -> dict[str, Any]:
    return {"merge_classes": classes}


def class_named_test(raw: Path) -> None:
    """Replace a copy by folders of images, with a class that has the name of a split."""
    for file in raw.glob("*.parquet"):
        file.unlink()
    for split, name in itertools.product(["train", "test"], ["cat", "test"]):
        (raw / split / name).mkdir(parents=True)
        (raw / split / name / "0.png").write_bytes(picture(len(split)))


# A change of the files, keys of the source, and the message.
REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "a column of inputs": (unchanged, {"input_column": "picture"}, 'found "picture"; allowed: img, tag'),
    "a column of labels": (unchanged, {"label_column": "class"}, 'column: found "class"; allowed: img, tag'),
    "a split": (unchanged, {"test_split": "validation"}, 'split: found "validation"; allowed: train, test'),
    "an unknown class": (unchanged, merged(pets=["cat", "cow"]), "found cow, dog in no class"),
    "a class twice": (unchanged, merged(pets=["cat"], dogs=["dog", "cat"]), "found cat in no class"),
    "no copy": (shutil.rmtree, {}, "raw: no such folder; .*hf download someone/pets --repo-type dataset"),
    "no row": (without_rows, {}, "someone/pets, split test: found no row; allowed: one or more"),
    "no image": (second_image(bytes=b"x"), {}, "someone/pets, split train, row 1: not an image"),
    "an image outside": (second_image(path="{}/../outside"), {}, "row 1: names the file .*; allowed: bytes"),
    "a link that leads outside": (second_image(path="{}/link"), {}, "row 1: names the file"),
    "an image that is missing": (second_image(path="{}/missing"), {}, "row 1: not an image"),
    "a pointer": (write(FIRST("test"), LFS), {}, r"raw/test-0.*\.parquet: a pointer of git-lfs"),
    "a lacking file": (
        lambda raw: (raw / FIRST("train")).rename(raw / "train-00000-of-00003.parquet"), {},
        "missing train-00001-of-00003, train-00002-of-00003; allowed: all 3 files of train",
    ),
    "a broken card": (write("README.md", "---\nconfigs: [\n---\n"), {}, r"raw: cannot be read as a dataset"),
    "a file in two splits": (class_named_test, {}, r"train/test/0\.png: found in the splits train and test"),
    "a script": (write("raw.py", "import os\n"), {}, r"raw: cannot be read as a dataset \("),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_invalid_copies_are_refused(raw: Path, kind: str) -> None:
    change, source, message = REFUSED[kind]
    change(raw)
    with pytest.raises(DatasetError, match=rf"(?s){message}"):
        made(raw, **source)
    with pytest.raises(DatasetError, match="not a prepared dataset"):
        PreparedDataset.open(raw.parent / "out")
