"""Tests that published tokenizers are used unchanged, and trained ones are deterministic."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data.pictures import LFS
from transformers import BertTokenizer

from dpsweep.base.files import DamagedFileError, read_checked_json, write_json
from dpsweep.data import DatasetError
from dpsweep.data.prepare import prepare_tokenizer as prepare
from dpsweep.data.texts import Tokenizer, train_word_pieces
from dpsweep.study.datasets import Dataset
from dpsweep.study.networks import Backbone

PIECES = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *("the", "cat", "##s", "sat", "!", "caf", "##e"),
]


def reader(tokenizer: dict[str, Any] | None, **changes: Any) -> Backbone:
    known = {"title": "Reader", "library": "transformers", "architecture": "distilbert"}
    own = {"weights": {"kind": "random"}, "tokenizer": tokenizer}
    return Backbone.model_validate(known | own | changes)


def bert(folder: Path, pieces: list[str] = PIECES) -> Tokenizer:
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    section = reader({"kind": "file", "path": str(folder / "vocab.txt")})
    return prepare("reader", section, {}, folder / "out.json")


def encode(tokenizer: Tokenizer, texts: list[str], max_length: int) -> list[list[int]]:
    return [row for block in tokenizer.blocks(texts, max_length) for row in block.tolist()]


def test_vocabulary_of_bert_gives_the_tokens_of_transformers(tmp_path: Path) -> None:
    texts = ["The cats SAT!", "Café  dog", "", "the " * 20]
    made = bert(tmp_path)
    assert made.identity.vocabulary == len(PIECES)
    # transformers 5.0 keeps capitals if it is not told otherwise.
    known = BertTokenizer(vocab={piece: i for i, piece in enumerate(PIECES)}, do_lower_case=True)
    wanted = known(texts, truncation=True, max_length=8)["input_ids"]
    assert encode(made, texts, 8) == [[*row, *[-1] * (8 - len(row))] for row in wanted]
    # By hand: [CLS] the cat ##s sat ! [SEP]. A text that is cut keeps [SEP].
    assert wanted[0] == [2, 5, 6, 7, 8, 9, 3]
    assert encode(made, ["the cat sat!"], 5) == [[2, 5, 6, 8, 3]]
    assert next(made.blocks(["the cat"], 5)).dtype == np.int32


def publish(prepared: Path, file: Path) -> None:
    """Write the ``tokenizer.json`` of a prepared tokenizer."""
    write_json(file, read_checked_json(prepared)["tokenizer"])


def test_edited_tokenizer_is_refused(tmp_path: Path) -> None:
    bert(tmp_path)
    path = tmp_path / "out.json"
    path.write_text(path.read_text().replace('"[CLS]": 2', '"[CLS]": 3'))
    with pytest.raises(DamagedFileError, match="edited") as raised:
        Tokenizer.open(path)
    assert raised.value.remake == (path,)


def test_published_file_is_used_unchanged(tmp_path: Path) -> None:
    first = bert(tmp_path)
    publish(tmp_path / "out.json", tmp_path / "tokenizer.json")
    section = reader({"kind": "file", "path": str(tmp_path / "tokenizer.json")})
    again = prepare("reader", section, {}, tmp_path / "again.json")
    assert again.identity == first.identity
    other = bert(tmp_path, [*PIECES, "dog"])
    assert other.identity != first.identity


WORDS = [f"{a}{b}ation" for a in ("transform", "rel", "cre", "not") for b in ("", "i", "er")]
TEXTS = [f"{WORDS[i % 12]} and {WORDS[(i * 5) % 12]}" for i in range(200)]


def test_vocabulary_is_trained_on_the_texts_of_a_dataset(tmp_path: Path) -> None:
    rows = [f"{text},{i % 2}" for i, text in enumerate(TEXTS)]
    (tmp_path / "train.csv").write_text("\n".join(["text,label", *rows]))
    files = {"kind": "files", "train": str(tmp_path / "train.csv"), "test_from_train": 0.5}
    known = {"title": "Public", "kind": "text", "tokenizer": "reader", "max_length": 8}
    sizes = {"classes": 2, "train_size": 100, "test_size": 100}
    public = Dataset.model_validate(known | sizes | {"source": files})
    section = reader({"kind": "train", "dataset": "public", "vocab_size": 200})
    made = prepare("reader", section, {"public": public}, tmp_path / "out.json")
    assert made.identity.vocabulary <= 200
    (row,) = encode(made, ["transformation and creation"], 8)
    # Each frequent word is one piece, between [CLS] and [SEP].
    assert [each >= 0 for each in row] == [True] * 5 + [False] * 3
    assert (row[0], row[4]) == (2, 3)
    (unknown,) = encode(made, ["日"], 8)
    assert unknown[:3] == [2, 1, 3]


def test_training_is_deterministic() -> None:
    # The library numbers pieces by a hash that is random for each call.
    assert len({train_word_pieces(TEXTS, 200).to_str() for _ in range(12)}) == 1


def test_invalid_tokenizers_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    for name, content, problem in (
        ("none.json", None, "no such file"),
        ("lfs.json", LFS, "a pointer of git-lfs"),
        ("some.json", b"{}", "cannot be read"),
        ("some.txt", b"cat\ndog\n", r"not a vocabulary of BERT, \[PAD\], \[UNK\]"),
        ("latin.txt", b"caf\xe9\n", "Save it as UTF-8"),
    ):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        section = reader({"kind": "file", "path": str(tmp_path / name)})
        with pytest.raises(DatasetError, match=rf"{name}: .*{problem}"):
            prepare("reader", section, {}, out)
        assert not out.exists()
    with pytest.raises(DatasetError, match="no such tokenizer") as raised:
        Tokenizer.open(out)
    assert raised.value.remake == (out,)
    image = Backbone(title="Images", architecture="vit", weights={"kind": "random"})
    with pytest.raises(DatasetError, match="images: reads no text"):
        prepare("images", image, {}, out)
