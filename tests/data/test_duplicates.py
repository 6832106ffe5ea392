"""Tests that duplicates of training examples in the test set are counted, named, and refused on request."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.data.pictures import section

from dpsweep.data import DatasetError, PreparedDataset
from dpsweep.data.examples import LabelledData
from dpsweep.data.prepare import inspect, prepare
from dpsweep.data.prepared import Split, find_duplicates
from dpsweep.data.texts import long_texts
from dpsweep.data.tokenizer import Tokenizer, byte_tokenizer, save_tokenizer, train_word_pieces
from dpsweep.study.datasets import Dataset


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
    return prepare("pets", section(pets, train, test, **keys), pets.parent / "out")


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


def test_duplicates_are_refused_on_request(pets: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"datasets\.pets: 2 of 6 .*\n.*duplicates: warn"):
        made(pets, duplicates="refuse")
    assert not (tmp_path / "out" / "metadata.json").exists()
    for name in (CAT, DOG):
        (pets / name.partition(" =")[0]).unlink()
    made(pets, 6, 4, duplicates="refuse")
    # Metadata without duplicates do not change.
    assert "duplicates" not in (tmp_path / "out" / "metadata.json").read_text()


@pytest.mark.parametrize("max_length", [3, 4, 5, 6, 9, 10])
def test_bytes_that_are_cut_are_counted_as_the_tokenizer_counts_them(max_length: int) -> None:
    texts = ["abc", "abcd", "  a   B c d e", "ä ö"]
    blocks = Tokenizer.of(byte_tokenizer()).blocks(texts, max_length)
    list(blocks)
    labels = np.zeros(2, np.int64)
    data = LabelledData(Split(texts[:2], labels), Split(texts[2:], labels), ["a"], {})
    said = long_texts(data, max_length, of_bytes=True)
    assert said.startswith(f"at least {blocks.cut.texts} of 4 texts" if blocks.cut else "")
    assert bool(said) == bool(blocks.cut)


def test_texts_that_are_cut_are_counted_and_compared_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = {split: str(tmp_path / f"{split}.csv") for split in ("train", "test")}
    Path(files["train"]).write_text("text,label\none two,0\ntwo,1\none two one,0\n")
    Path(files["test"]).write_text("text,label\none two two one,0\nONE two  one,1\n")
    save_tokenizer(train_word_pieces(["one two"], 200), tmp_path / "tokenizer.json")
    known: dict[str, Any] = {
        **{"title": "Mails", "kind": "text", "classes": 2, "train_size": 3, "test_size": 2},
        **{"tokenizer": "any", "max_length": 4, "source": {"kind": "files", **files}},
    }
    dataset = Dataset.model_validate(known)
    inspect("mails", dataset)
    assert "longer" not in caplog.text  # four words may be four tokens
    inspect("mails", dataset.model_copy(update={"max_length": 3}))
    said = "mails: at least 1 of 5 texts are longer than max_length (3 tokens) and are cut"
    assert said in caplog.text
    found = prepare("mails", dataset, tmp_path / "out", tmp_path / "tokenizer.json")
    row = "{}, data row {}".format
    # The rows "[CLS] one two [SEP]" of four texts are equal; "one two one" is in both files.
    assert found.metadata.duplicates == (f"{row(files['test'], 2)} = {row(files['train'], 3)}",)
    # Of 2 + 1 + 3 training tokens one does not fit beside [CLS] and [SEP]; of 4 + 3 test tokens three.
    cut = {split: (each.texts, each.share_of_tokens) for split, each in found.metadata.cut.items()}
    assert cut == {"train": (1, pytest.approx(1 / 6)), "test": (2, pytest.approx(3 / 7))}
    assert "mails: 2 of 2 test texts are longer than max_length (4 tokens)" in caplog.text
    assert "by 43 % of all tokens" in caplog.text
    # Without cut texts, metadata are as before.
    whole = dataset.model_copy(update={"max_length": 6})
    prepare("mails", whole, tmp_path / "whole", tmp_path / "tokenizer.json")
    assert '"cut"' not in (tmp_path / "whole" / "metadata.json").read_text()


def test_a_duplicate_may_be_the_last_of_the_hashes() -> None:
    train, test = np.array([9, 3, 5], np.uint64), np.array([9, 10, 2, 5], np.uint64)
    found = find_duplicates(train, test, "train {}".format, "test {}".format)
    assert found == ["test 0 = train 0", "test 3 = train 2"]
