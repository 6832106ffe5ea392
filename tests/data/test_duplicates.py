"""Test examples that are training examples too are counted, named, and refused where that is asked."""

import csv
import logging
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dpsweep.data import DatasetError, PreparedDataset
from dpsweep.data.prepare import prepare
from dpsweep.data.tokenizer import save_tokenizer, train_word_pieces
from dpsweep.study.config import Dataset
from dpsweep.study.fingerprints import section_fingerprint, source_fingerprint


@pytest.fixture
def pets(tmp_path: Path) -> dict[str, Any]:
    """Of three cats and three dogs for testing, one cat and one dog are in the training set too.

    One lies there under another name, one as a file of another format.
    """
    grey = {"train": range(0, 60, 10), "test": [0, 105, 115, 125, 135, 50]}
    for split, levels in grey.items():
        for number, level in enumerate(levels):
            folder = tmp_path / "pets" / split / ("cat" if number < 3 else "dog")
            folder.mkdir(parents=True, exist_ok=True)
            suffix = "bmp" if (split, level) == ("test", 50) else "png"
            Image.new("RGB", (9, 7), (level, 0, 0)).save(folder / f"{split}{number}.{suffix}")
    return {
        **{"title": "Pets", "image_size": 16, "classes": 2, "train_size": 6, "test_size": 6},
        "source": {"kind": "folder", "path": str(tmp_path / "pets")},
    }


def made(section: dict[str, Any], folder: Path, **keys: Any) -> PreparedDataset:
    return prepare("pets", Dataset.model_validate(section | keys), folder / "out")


CAT, DOG = "test/cat/test0.png = train/cat/train0.png", "test/dog/test5.bmp = train/dog/train5.png"


def test_images_are_counted_and_named(
    pets: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert made(pets, tmp_path).metadata.duplicates == (CAT, DOG)
    said = "2 of 6 test examples have the pixels of a training example"
    assert f"pets: {said}, and tell nothing of unseen ones: {CAT}, {DOG}" in caplog.text


def test_they_are_refused_where_that_is_asked(pets: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"datasets\.pets: 2 of 6 .*\n.*duplicates: warn"):
        made(pets, tmp_path, duplicates="refuse")
    assert not (tmp_path / "out" / "metadata.json").exists()


def test_names_are_right_beside_corrupt_images(pets: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "pets/test/cat/test1.png").write_bytes(b"no image")
    (tmp_path / "pets/train/dog/train3.png").write_bytes(b"no image")
    found = made(pets, tmp_path, corrupt="skip", train_size=5, test_size=5)
    assert found.metadata.duplicates == (CAT, DOG)


def test_data_without_duplicates_are_as_before(pets: dict[str, Any], tmp_path: Path) -> None:
    for name in (CAT, DOG):
        (tmp_path / "pets" / name.partition(" =")[0]).unlink()
    made(pets, tmp_path, test_size=4, duplicates="refuse")
    assert "duplicates" not in (tmp_path / "out" / "metadata.json").read_text()


def test_only_an_asked_refusal_prepares_data_again(pets: dict[str, Any]) -> None:
    plain = Dataset.model_validate(pets)
    assert "duplicates" not in plain.model_dump()
    same, other = (plain.model_copy(update={"duplicates": each}) for each in ("warn", "refuse"))
    for made_from in (source_fingerprint, section_fingerprint):
        assert made_from(same) == made_from(plain) != made_from(other)


def test_texts_are_counted_as_a_network_reads_them(tmp_path: Path) -> None:
    tables = {"train": ["one two", "two", "one"], "test": ["two one", "one two three"]}
    files = {}
    for split, texts in tables.items():
        files[split] = str(tmp_path / f"{split}.csv")
        with Path(files[split]).open("w", newline="") as stream:
            csv.writer(stream).writerows([("text", "label"), *zip(texts, (0, 1, 0), strict=False)])
    save_tokenizer(train_word_pieces(tables["train"], 200), tmp_path / "tokenizer.json")
    section: dict[str, Any] = {
        **{"title": "Mails", "kind": "text", "classes": 2, "train_size": 3, "test_size": 2},
        **{"tokenizer": "any", "max_length": 4, "source": {"kind": "files", **files}},
    }
    dataset = Dataset.model_validate(section)
    found = prepare("mails", dataset, tmp_path / "out", tmp_path / "tokenizer.json")
    row = "{}, data row {}".format
    assert found.metadata.duplicates == (f"{row(files['test'], 2)} = {row(files['train'], 1)}",)
