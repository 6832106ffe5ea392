"""What people have in their tables of texts: each kind is read rightly or refused by name."""

import ast
import json
import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import csv as pa_csv
from pyarrow import parquet

from dpsweep.data import DatasetError
from dpsweep.data.prepare import prepare
from dpsweep.data.tables import read_table
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
    "semicolons": (".csv", GOOD.replace(b",", b";"), [1, 0], ["ham", "spam"]),
    "quotes around all between semicolons": (
        ".csv",
        b'"text";"label"\n"a";"1"\n"b";"0"\n',
        [1, 0],
        ["0", "1"],
    ),
    "tabs in a .csv": (".csv", GOOD.replace(b",", b"\t"), [1, 0], ["ham", "spam"]),
    "semicolons, and commas in texts": (
        ".csv",
        b'text;label\n"well; yes";1\nwell, no;0\n',
        [1, 0],
        ["0", "1"],
    ),
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
    "an empty file": (b"", ": empty; allowed: a header and at least one row"),
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
    "Latin-1": (
        "text,label\nJürgen,1\nb,0\n".encode("latin-1"),
        r"line 2 is not UTF-8: .J.*xfcrgen,1.*Save it as UTF-8",
    ),
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
        r"line 2 \(.t+\.\.\.\): found 1 field; allowed: 2, as in the header",
    ),
    "bars": (GOOD.replace(b",", b"|"), r"'text'; allowed: one, of text\|label .*by commas"),
    "a column twice": (b"text,text,label\na,b,1\n", "found 2 columns 'text'; allowed: one"),
    "no such column": (
        b"body,label\na,1\n",
        r"found no column 'text'; allowed: one, of body, label \(source.input_column",
    ),
    "no header": (
        b"buy now,spam\nsee you,ham\n",
        "no column 'text'; allowed: one, of buy now, spam",
    ),
    "too many fields": (b"text,label\nwell, hello,1\n", r"line 2 \(.well, hello,1.\): found 3"),
    "a lacking field": (b"text,label\na,1\nb\n", r"line 3 \(.b.\): found 1 field; allowed: 2"),
    "a comment": (b"text,label\n# mine\na,1\n", r"line 2 \(.# mine.\): found 1 field"),
    "a comma at the end": (b"text,label\na,1,\nb,0,\n", r"line 2 \(.a,1,.\): found 3 fields"),
    "an open quote": (
        b'text,label\n"a,1\nb,0\n',
        r"line 2 \(.*a,1.\): found a quote that is never closed; allowed: quotes in pairs",
    ),
    "an open quote in the header": (
        b'"text,label\na,1\n',
        r"line 1 \(.*: found a quote that is never",
    ),
    "backslashes": (
        rb"""text,label
x,0
"say \"hi\" now",1
""",
        r"line 3 \(.*\): found text after the closing quote of a field; allowed: .. for a quote",
    ),
    "backslashes and commas": (
        rb"""text,label
"say \"hi, you\" now",1
""",
        r"line 2 \(.*\): found text after the closing quote",
    ),
    "quotes that are text": (
        b'text,label\nx,ham\n"Hello" he said,ham\n',
        r"line 3 \(.*\): found text after the closing quote",
    ),
    "quotes that swallow rows": (
        b'text,label\n"Hello he said,ham\ngood,spam\nsee you",ham\nx,spam\n',
        r"line 2 \(.*Hello he said,ham.\): found what looks like a row of its own inside of quotes",
    ),
    "quotes that swallow rows after their label": (
        b'label,text\nham,"Hello he said\nspam,good\nham,see you"\nspam,x\n',
        r"line 3 \(.spam,good.\): found what looks like a row of its own inside of quotes",
    ),
    "Windows quotes": (
        b'text,label\r\n"a,1\r\nb",0\r\nc,1\r\n',
        r"line 2 \(.*a,1.\): found what looks like a row",
    ),
}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"text": "a", "label": 1}\n{"text": "b", "label"\n', "line 2 .*: found Expecting"),
        (b'{"text": "a", "label": 1}\n\n7\n', "line 3 .*: found no object; allowed: one object"),
        (b'[{"text": "a", "label": 1}]', r"line 1 \(.*: found no object"),
        (b'{"text": "a", "text": "b", "label": 1}\n', 'line 1 .*: found "text" twice'),
        (
            b'{"text": "a", "label": 1}\n{"text": "b"}\n',
            "row 2, column 'label': found the label None",
        ),
        (b'{"label": 1}\n{"text": "b", "label": 0}\n', "row 1, column 'text': found None"),
        (b'{"text": "a"}\n', "no column 'label'; allowed: one, of text"),
        (b'{"text": "a", "label": 1.0}\n', "row 1, column 'label': found the label 1.0"),
        (b"", "found no column 'text'; allowed: one, of nothing"),
    ],
)
def test_lines_of_json_that_cannot_be_right_are_refused(
    tmp_path: Path, content: bytes, message: str
) -> None:
    with pytest.raises(DatasetError, match=rf"train\.jsonl.*{message}"):
        read(tmp_path, content, suffix=".jsonl")


@pytest.mark.parametrize(
    "other", ["7, 'seven'", "[1], {'a': 2}", "None, 1.5", "'2024-01-01', 'never'"]
)
def test_only_the_two_columns_of_lines_of_json_are_read(tmp_path: Path, other: str) -> None:
    lines = [
        json.dumps({"text": text, "label": label, "other": each})
        for text, label, each in zip("ab", (1, 0), ast.literal_eval(other), strict=True)
    ]
    assert read(tmp_path, "\n".join(lines).encode(), suffix=".jsonl") == (
        ["a", "b"],
        [1, 0],
        ["0", "1"],
    )


# -- tables that others write ------------------------------------------------------------------

characters = st.one_of(
    st.sampled_from("\",;\t\n\r\\'| #=\ufeff\u2028\x85\x0b"),
    st.characters(exclude_categories=["Cs"]),
)
written = st.lists(
    st.tuples(st.text(characters, max_size=30).filter(lambda text: "\0" not in text), st.sampled_from("01")),
    min_size=1, max_size=8,
)  # fmt: skip


def with_arrow(rows: list[tuple[str, str]], path: Path, delimiter: str) -> None:
    table = pa.table({"text": [text for text, _ in rows], "label": [label for _, label in rows]})
    pa_csv.write_csv(
        table, path, pa_csv.WriteOptions(delimiter=delimiter, quoting_style="all_valid")
    )


def with_pandas(rows: list[tuple[str, str]], path: Path, delimiter: str) -> None:
    frame = pd.DataFrame(rows, columns=["text", "label"])
    frame.to_csv(path, sep=delimiter, index=False, lineterminator="\r\n")


@pytest.mark.parametrize("write_table", [with_arrow, with_pandas])
@pytest.mark.parametrize(("suffix", "delimiter"), [(".csv", ","), (".tsv", "\t")])
@given(rows=written)
@settings(max_examples=60)
def test_what_others_write_is_read_to_the_character_or_refused(
    suffix: str, delimiter: str, write_table: Any, rows: list[tuple[str, str]]
) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, f"table{suffix}")
        write_table(rows, path, delimiter)
        try:
            table = read_table(path, "text", "label")
        except DatasetError as refusal:
            # A text that is itself lines of a table.
            assert "looks like a row of its own" in str(refusal)
            assert any(delimiter in line for text, _ in rows for line in re.split(r"[\r\n]", text))
            return
    assert list(zip(table.texts, table.labels, strict=True)) == rows


def test_texts_of_several_lines_are_read(tmp_path: Path) -> None:
    mail = 'Dear Ann,\n\nyes, "tomorrow", or\r\nthe day after.\nBest, Bob'
    rows = [(mail, "1"), ("no", "0"), ('"', "1"), ("a,1", "0")]
    with_pandas(rows, tmp_path / "t.csv", ",")
    table = read_table(tmp_path / "t.csv", "text", "label")
    assert list(zip(table.texts, table.labels, strict=True)) == rows
    assert table.lines == len((tmp_path / "t.csv").read_bytes().splitlines())


@pytest.mark.parametrize(
    "lines",
    [
        ['"Hello" he said\t1', "good\t0", 'see "you"\t1'],
        ['"Hello he said\t1', "good\t0", 'bye"\t1', "x\t0"],
        ['5" nails\t0', '"\t1'],
        ['"a\t0', 'b"\t1'],
    ],
)
def test_quotes_between_tabs_may_be_text(tmp_path: Path, lines: list[str]) -> None:
    """Those of GLUE are written so: every line is a row."""
    content = "text\tlabel\n" + "\n".join(lines) + "\n"
    texts, labels, _ = read(tmp_path, content.encode(), suffix=".tsv")
    assert [f"{text}\t{label}" for text, label in zip(texts, labels, strict=True)] == lines


# -- labels in files of two kinds --------------------------------------------------------------


@pytest.mark.parametrize(
    ("train", "test", "labels", "classes"),
    [
        (("jsonl", "0 1"), ("csv", "0 1"), [0, 1], ["0", "1"]),
        (("csv", "1 0"), ("jsonl", "0 1"), [0, 1], ["0", "1"]),
        (("parquet", "0 1"), ("tsv", "1 0"), [1, 0], ["0", "1"]),
        (("jsonl", '"0" 1'), ("jsonl", '0 "1"'), [0, 1], ["0", "1"]),
        (("jsonl", "true false"), ("csv", "true FALSE"), [1, 0], ["False", "True"]),
        (("csv", "false true"), ("jsonl", "true false"), [1, 0], ["False", "True"]),
        (("csv", "1 two"), ("jsonl", '1 "two"'), [0, 1], ["1", "two"]),
    ],
)
def test_labels_are_the_same_classes_in_files_of_all_kinds(
    tmp_path: Path,
    train: tuple[str, str],
    test: tuple[str, str],
    labels: list[int],
    classes: list[str],
) -> None:
    files = {}
    for split, (suffix, line) in (("train", train), ("test", test)):
        found = line.split()
        path = tmp_path / f"{split}.{suffix}"
        if suffix == "jsonl":
            rows = (f'{{"text": "a", "label": {label}}}' for label in found)
            path.write_text("\n".join(rows))
        elif suffix == "parquet":
            write(path, {"text": ["a"] * len(found), "label": [int(label) for label in found]})
        else:
            between = {"csv": ",", "tsv": "\t"}[suffix]
            path.write_text(
                "\n".join(
                    f"{'a' if at else 'text'}{between}{label}"
                    for at, label in enumerate(["label", *found])
                )
            )
        files[split] = str(path)
    data = load_files(FilesSource.model_validate({"kind": "files", **files}))
    assert (data.test.labels.tolist(), data.classes) == (labels, classes)


# -- files that are not there ------------------------------------------------------------------

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_a_pointer_of_git_lfs_is_named(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(
        DatasetError, match=rf"train\{suffix}: .* pointer of git-lfs.*: git lfs pull"
    ):
        read(tmp_path, LFS, suffix=suffix)


def test_a_damaged_page_of_parquet_names_its_file(tmp_path: Path) -> None:
    table = {"text": [f"text {number}" * 20 for number in range(2000)], "label": [0, 1] * 1000}
    content = bytearray(write(tmp_path / "train.parquet", table).read_bytes())
    content[1000:1400] = bytes(400)
    (tmp_path / "train.parquet").write_bytes(content)
    with pytest.raises(DatasetError, match=r"train\.parquet: cannot be read as .parquet"):
        read_table(tmp_path / "train.parquet", "text", "label")


def test_a_column_of_parquet_that_is_not_utf_8_names_its_file(tmp_path: Path) -> None:
    raw = pa.array([b"J\xfcrgen", b"b"], pa.binary()).view(pa.string())
    write(tmp_path / "train.parquet", {"text": raw, "label": [0, 1]})
    with pytest.raises(DatasetError, match=r"train\.parquet: cannot be read as .*Save it as UTF-8"):
        read_table(tmp_path / "train.parquet", "text", "label")


def test_a_table_is_cut_by_its_texts(tmp_path: Path) -> None:
    rows = [(f"text {number % 150}", "01"[number % 2]) for number in range(300)]
    with_pandas(rows, tmp_path / "all.csv", ",")
    keys = {"kind": "files", "train": str(tmp_path / "all.csv"), "test_from_train": 0.2}
    data = load_files(FilesSource.model_validate(keys))
    train, test = ([split.inputs, split.labels.tolist()] for split in (data.train, data.test))
    assert sorted([*zip(*train, strict=True), *zip(*test, strict=True)]) == sorted(
        (text, int(label)) for text, label in rows
    )
    assert not set(train[0]) & set(test[0]), "equal texts are on the same side"
    assert 30 < len(test[0]) < 90
    for split in (data.train, data.test):
        rows_of = [
            int(split.where(place).rpartition(" ")[2]) - 1 for place in range(len(split.labels))
        ]
        assert [rows[place][0] for place in rows_of] == split.inputs
    again = load_files(FilesSource.model_validate(keys | {"seed": 3}))
    assert again.test.inputs != data.test.inputs
    with pytest.raises(ValueError, match="found both it and test_from_train"):
        FilesSource.model_validate(keys | {"test": "other.csv"})
    with pytest.raises(ValueError, match="found neither it and test_from_train"):
        FilesSource.model_validate({"kind": "files", "train": "all.csv"})


def test_rows_inside_of_quotes_are_seen_whatever_class_they_have(tmp_path: Path) -> None:
    """The class of the row that a quote swallows may be in no other row."""
    content = b'text,label,note\n"a,0,x\nb,2,x\nc",1,x\nd,0,x\n'
    with pytest.raises(DatasetError, match=r"line 2 .*what looks like a row of its own"):
        read(tmp_path, content, GOOD)


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
        (".jsonl", "line 1 .*: found Expecting value; allowed: one object of JSON"),
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

        def refuse(path: Path) -> Any:
            raise PermissionError(13, "Permission denied", str(path))

        # root may read everything
        monkeypatch.setattr("dpsweep.data.tables.require_content", refuse)
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
