"""What people have in their tables of texts: each kind is read rightly or refused by name."""

import os
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from dpsweep.data import DatasetError
from dpsweep.data.prepare import prepare
from dpsweep.data.texts import load_files
from dpsweep.data.tokenizer import save_tokenizer, train_word_pieces
from dpsweep.study.config import Dataset, FilesSource

GOOD = b"text,label\nbuy now,spam\nsee you,ham\n"


def write(path: Path, content: bytes | dict[str, Any]) -> Path:
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        parquet.write_table(pa.table(content), path)
    return path


def read(
    folder: Path, train: bytes | dict[str, Any], test: Any = None, suffix: str = ".csv"
) -> tuple[list[str], list[int], list[str]]:
    """Return the texts and labels of the training table, and the classes."""
    files = {
        split: str(write(folder / f"{split}{suffix}", content))
        for split, content in (("train", train), ("test", train if test is None else test))
    }
    texts = load_files(FilesSource.model_validate({"kind": "files", **files}))
    return list(texts.train.inputs), texts.train.labels.tolist(), texts.classes


# -- tables that are read --------------------------------------------------------------------

READ: dict[str, tuple[str, bytes | dict[str, Any], list[int], list[str]]] = {
    "byte order mark": (".csv", b"\xef\xbb\xbf" + GOOD, [1, 0], ["ham", "spam"]),
    "line ends of Windows": (".csv", GOOD.replace(b"\n", b"\r\n"), [1, 0], ["ham", "spam"]),
    "suffix in capitals": (".CSV", GOOD, [1, 0], ["ham", "spam"]),
    "empty lines": (".csv", GOOD.replace(b"\n", b"\n\n"), [1, 0], ["ham", "spam"]),
    "tabs": (".tsv", GOOD.replace(b",", b"\t"), [1, 0], ["ham", "spam"]),
    "lines of JSON": (
        ".jsonl",
        b'{"text": "2024-01-01", "label": 1}\n{"label": 0, "text": "b", "id": 7}\n',
        [1, 0],
        ["0", "1"],
    ),
    "numbers": (".csv", b"text,label\na,1\nb,0\nc, 2\n", [1, 0, 2], ["0", "1", "2"]),
    "names with leading zeros": (".csv", b"text,label\na,01\nb,02\n", [0, 1], ["01", "02"]),
    "numbers beside names": (".csv", b"text,label\na,1\nb,two\n", [0, 1], ["1", "two"]),
    "names that look empty": (".csv", b"text,label\na,NA\nb,null\n", [0, 1], ["NA", "null"]),
    "true and false": (".csv", b"text,label\na,true\nb,false\n", [1, 0], ["false", "true"]),
    "truth values": (
        ".parquet",
        {"text": ["a", "b"], "label": [True, False]},
        [1, 0],
        ["False", "True"],
    ),
    "outer spaces": (".csv", b"text,label\na,ham\nb,ham \nc,spam\n", [0, 0, 1], ["ham", "spam"]),
    "two forms of Unicode": (
        ".csv",
        "text,label\na,caf\u00e9\nb,cafe\u0301\nc,tea\n".encode(),
        [0, 0, 1],
        ["caf\u00e9", "tea"],
    ),
    "Chinese names": (".csv", "text,label\na,猫\nb,犬\n".encode(), [1, 0], ["犬", "猫"]),
    "a dictionary column": (
        ".parquet",
        {"text": ["a", "b"], "label": pa.array(["x", "y"]).dictionary_encode()},
        [0, 1],
        ["x", "y"],
    ),
    "a text of 30 megabytes": (
        ".csv",
        b"text,label\n" + b"long " * 6_000_000 + b",1\nb,0\n",
        [1, 0],
        ["0", "1"],
    ),
}


@pytest.mark.parametrize("kind", READ)
def test_tables_of_all_kinds_are_read(tmp_path: Path, kind: str) -> None:
    suffix, content, labels, classes = READ[kind]
    texts, found, names = read(tmp_path, content, suffix=suffix)
    assert (found, names) == (labels, classes)
    assert len(texts) == len(labels) and all(type(text) is str for text in texts)


# -- tables that are refused -----------------------------------------------------------------

REFUSED: dict[str, tuple[bytes | dict[str, Any], str]] = {
    "an empty file": (b"", "cannot be read as .csv .*Empty"),
    "a header only": (b"text,label\n", ": found no row; allowed: at least one example"),
    "an empty label": (
        b"text,label\na,spam\nb,\n",
        ", data row 2, column 'label': found the label ''; allowed: whole numbers from 0",
    ),
    "a white label": (b"text,label\na,spam\nb,  \n", "data row 2, column 'label': found the label"),
    "labels from 1": (
        b"text,label\na,1\nb,2\nc,3\n",
        ", column 'label': labels start at 1: found 1 to 3; allowed: 0 to 2. Subtract 1",
    ),
    "labels with a gap": (
        b"text,label\na,0\nb,2\n",
        "found the labels 0, 2; allowed: 0 to 1 for 2 classes, without a gap",
    ),
    "numbers of customers": (b"text,label\na,123456789012\nb,7\n", "found the labels 7, 1234"),
    "negative labels": (b"text,label\na,0\nb,-1\n", "row 2.*label -1; allowed: from 0; an example"),
    "decimal labels": (
        b"text,label\na,0.0\nb,1.0\n",
        "row 1, column 'label': found the label '0.0'",
    ),
    "ratings": (b"text,label\na,4.5\nb,spam\n", "row 1, column 'label': found the label '4.5'"),
    "NaN": (b"text,label\na,spam\nb,nan\n", "row 2, column 'label': found the label 'nan'"),
    "Latin-1": ("text,label\nJürgen,1\nb,0\n".encode("latin-1"), "UTF8.*Save it as UTF-8"),
    "Latin-1 in the header": ("text,label,größe\na,1,2\n".encode("latin-1"), "Save it as UTF-8"),
    "UTF-16": (GOOD.decode().encode("utf-16"), "looks like UTF-16; allowed: UTF-8.*: iconv -f"),
    "UTF-16 without a mark": (GOOD.decode().encode("utf-16-be"), "looks like UTF-16"),
    "a label of 30 MB": (
        b"text,label\na,0\nb,0." + b"1" * 30_000_000 + b"\n",
        r"row 2, column 'label': found the label '0\.1+\.\.\.; allowed: whole numbers",
    ),
    "a header of 30 MB": (b"t" * 30_000_000 + b",label\na,0\n", r"one, of t+\.\.\., label"),
    "a row of 30 MB that lacks a label": (
        b"text,label\n" + b"t" * 30_000_000 + b"\n",
        "cannot be read as .csv",
    ),
    "semicolons": (GOOD.replace(b",", b";"), "'text'; allowed: one, of text;label .*by commas"),
    "a column twice": (b"text,text,label\na,b,1\n", "found 2 columns 'text'; allowed: one"),
    "no such column": (
        b"body,label\na,1\n",
        r"found no column 'text'; allowed: one, of body, label \(source.input_column",
    ),
    "no header": (
        b"buy now,spam\nsee you,ham\n",
        "no column 'text'; allowed: one, of buy now, spam",
    ),
    "too many fields": (b"text,label\nwell, hello,1\n", "Expected 2 columns, got 3"),
    "an open quote": (b'text,label\n"a,1\nb,0\n', "cannot be read as .csv"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_table_that_cannot_be_right_is_refused(tmp_path: Path, kind: str) -> None:
    content, message = REFUSED[kind]
    with pytest.raises(DatasetError, match=rf"(?s)train\.csv.*{message}") as refusal:
        read(tmp_path, content, GOOD)
    assert len(str(refusal.value)) < 1000


PARQUET: dict[str, tuple[dict[str, Any], str]] = {
    "no columns": ({}, "found no column 'text'; allowed: one, of nothing"),
    "decimal labels": ({"text": ["a", "b"], "label": [0.0, 1.0]}, "row 1.*found the label 0.0"),
    "missing labels": ({"text": ["a", "b"], "label": ["x", None]}, "row 2.*found the label None"),
    "lists": ({"text": ["a"], "label": [[1]]}, r"row 1.*found the label \[1\]"),
    "missing texts": ({"text": ["a", None], "label": [0, 1]}, "row 2, column 'text': found None"),
    "bytes": ({"text": [b"a"], "label": [0]}, "row 1, column 'text': found b'a'; allowed: text"),
}


@pytest.mark.parametrize("kind", PARQUET)
def test_a_parquet_file_that_cannot_be_right_is_refused(tmp_path: Path, kind: str) -> None:
    content, message = PARQUET[kind]
    with pytest.raises(DatasetError, match=rf"train\.parquet.*{message}"):
        read(tmp_path, content, {"text": ["a"], "label": [0]}, ".parquet")


@pytest.mark.parametrize(
    ("suffix", "message"),
    [
        (".xlsx", "found a .xlsx file; allowed: .csv, .tsv, .jsonl, .parquet"),
        ("", "found a nameless file; allowed"),
        (".parquet", "cannot be read as .parquet"),
        (".jsonl", "cannot be read as .jsonl"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, suffix: str, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        read(tmp_path, b"PK\x03\x04", suffix=suffix)


NUMBERS, NAMES = b"text,label\na,0\nb,1\n", b"text,label\na,x\nb,y\n"


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (NAMES, b"text,label\na,z\n", "row 1.* 'z'; allowed: the classes of .* examples: x, y"),
        (NAMES, b"text,label\na,0\n", "row 1.* '0'; allowed: the classes of .* examples: x, y"),
        (NUMBERS, b"text,label\na,2\n", "row 1.* label 2; allowed: 0 to 1"),
        (NUMBERS, b"text,label\na,x\n", "row 1.* label 'x'; allowed: 0 to 1"),
        (NUMBERS, b"text,label\n", "found no row"),
    ],
)
def test_test_labels_are_those_of_training(
    tmp_path: Path, train: bytes, test: bytes, message: str
) -> None:
    with pytest.raises(DatasetError, match=rf"test\.csv.*{message}"):
        read(tmp_path, train, test)


@pytest.mark.parametrize("what", ["missing", "folder", "pipe", "forbidden"])
def test_a_file_that_cannot_be_opened_is_named(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "test.csv", GOOD)
    if what == "folder":
        (tmp_path / "train.csv").mkdir()
    if what == "pipe":
        os.mkfifo(tmp_path / "train.csv")
    if what == "forbidden":

        def refuse(path: Path, **_: Any) -> Any:
            raise PermissionError(13, "Permission denied", str(path))

        monkeypatch.setattr("pyarrow.csv.read_csv", refuse)  # root may read everything
    files = {"train": str(tmp_path / "train.csv"), "test": str(tmp_path / "test.csv")}
    with pytest.raises(DatasetError, match=r"train\.csv: (no such file|cannot be read)"):
        load_files(FilesSource.model_validate({"kind": "files", **files}))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "an empty text"),
        ("  ", "an empty text"),
        ("\u3000\t", "an empty text"),
        ("\u200b \ufeff\u2060", "an empty text (of characters that cannot be seen)"),
        ("one\0", "a text with a NUL character"),
    ],
)
def test_a_text_that_says_nothing_is_refused_or_left_out(
    tmp_path: Path, text: str, what: str
) -> None:
    lines = ["one", text, "two", "three"]
    table = {"text": lines, "label": [0, 1, 1, 0]}
    files = {split: str(write(tmp_path / f"{split}.parquet", table)) for split in ("train", "test")}
    keys: dict[str, Any] = {
        **{"title": "Mails", "kind": "text", "classes": 2, "train_size": 3, "test_size": 3},
        **{"tokenizer": "any", "max_length": 4, "source": {"kind": "files", **files}},
    }
    tokenizer = tmp_path / "tokenizer.json"
    save_tokenizer(train_word_pieces(lines, 200), tokenizer)
    with pytest.raises(DatasetError, match=rf"train\.parquet, data row 2: {re.escape(what)}"):
        prepare("mails", Dataset.model_validate(keys), tmp_path / "out", tokenizer)
    skipping = Dataset.model_validate(keys | {"corrupt": "skip"})
    made = prepare("mails", skipping, tmp_path / "out", tokenizer)
    assert made.train_labels.tolist() == [0, 1, 0]
    assert len(made.train_inputs) == 3
    assert [each.rpartition("/")[2] for each in made.metadata.skipped] == [
        f"train.parquet, data row 2: {what}",
        f"test.parquet, data row 2: {what}",
    ]
