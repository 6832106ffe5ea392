"""Tables of texts in all formats, and tokenizers: used exactly, or refused with the reason."""

import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import csv as pa_csv
from pyarrow import parquet
from tests.data.pictures import LFS
from transformers import BertTokenizer

from dpsweep.base.files import DamagedFileError, read_checked_json, write_json
from dpsweep.data import DatasetError
from dpsweep.data.examples import LabelledData
from dpsweep.data.prepare import alike_classes, inspect, prepare, prepare_tokenizer
from dpsweep.data.prepared import Split
from dpsweep.data.texts import (
    Tokenizer,
    byte_tokenizer,
    load_files,
    long_texts,
    read_table,
    save_tokenizer,
    train_word_pieces,
)
from dpsweep.study.datasets import Dataset, FilesSource
from dpsweep.study.networks import Backbone

GOOD = "text,label\nbuy now,spam\nsee you,ham\n"
SPAM, NUMBERS, MEGABYTES = ["ham", "spam"], ["0", "1"], 2**20
Content = str | bytes | dict[str, Any]


def write(path: Path, content: Content) -> Path:
    if isinstance(content, dict):
        parquet.write_table(pa.table(content), path)
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def read(folder: Path, train: Content, test: Content = GOOD, suffix: str = ".csv") -> LabelledData:
    """Write a training table with a suffix, and a test table as CSV, and read both."""
    files = {
        "train": str(write(folder / f"train{suffix}", train)),
        "test": str(write(folder / "test.csv", test)),
    }
    return load_files(FilesSource.model_validate({"kind": "files", **files}))


# -- tables that are read ------------------------------------------------------------------------

READ: dict[str, tuple[str, Content, list[int], list[str]]] = {
    "line ends of Windows": (".csv", GOOD.replace("\n", "\r\n"), [1, 0], SPAM),
    "empty lines": (".csv", GOOD.replace("\n", "\n\n"), [1, 0], SPAM),
    "lines of JSON": (
        ".jsonl", '{"text": "2024", "label": 1}\n\n{"label": 0, "text": "b", "id": 7}\n', [1, 0], NUMBERS
    ),
    "numbers": (".csv", "text,label\na,1\nb,0\nc, 2\n", [1, 0, 2], ["0", "1", "2"]),
    "tabs": (".tsv", "text\tlabel\na\t1\nb\t0\n", [1, 0], NUMBERS),
    "texts": (".jsonl", '{"text": "a", "label": "1"}\n{"text": "b", "label": 0}\n', [1, 0], NUMBERS),
    "numbers of a column": (".parquet", {"text": ["a", "b"], "label": [1, 0]}, [1, 0], NUMBERS),
    "names with leading zeros": (".csv", "text,label\na,01\nb,02\n", [0, 1], ["01", "02"]),
    "numbers beside names": (".csv", "text,label\na,1\nb,two\n", [0, 1], ["1", "two"]),
    "line ends and quotes in a field": (".csv", 'text,label\n"a\n""b"", c",1\nd,0\n', [1, 0], NUMBERS),
    "truth values": (".parquet", {"text": ["a", "b"], "label": [True, False]}, [1, 0], ["False", "True"]),
    "outer spaces": (".csv", "text,label\na,ham\nb,ham \nc,spam\n", [0, 0, 1], SPAM),
    "two forms of Unicode": (
        ".csv", "text,label\na,caf\u00e9\nb,cafe\u0301\nc,tea\n", [0, 0, 1], ["caf\u00e9", "tea"]
    ),
    "a dictionary column": (
        ".parquet", {"text": ["a", "b"], "label": pa.array(["y", "x"]).dictionary_encode()},
        [1, 0], ["x", "y"],
    ),
    "a text of 3 MB": (".csv", f"text,label\n{'long' * MEGABYTES},1\nb,0\n", [1, 0], NUMBERS),
}  # fmt: skip


@pytest.mark.parametrize("kind", READ)
def test_tables_of_all_formats_are_read(tmp_path: Path, kind: str) -> None:
    suffix, content, labels, classes = READ[kind]
    # The test table is another format.
    data = read(tmp_path, content, f"text,label\na,{classes[-1]}\n", suffix)
    assert (data.train.labels.tolist(), data.classes) == (labels, classes)
    assert data.test.labels.tolist() == [len(classes) - 1]
    texts = list(data.train.inputs)
    assert len(texts) == len(labels) and all(type(text) is str for text in texts)


# -- tables written by other libraries -----------------------------------------------------------

characters = st.one_of(
    st.sampled_from("\",;\t\n\r\\'| #=\ufeff\u2028\x85\x0b"),
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"),
)
written = st.lists(
    st.tuples(st.text(characters, max_size=30), st.sampled_from("01")), min_size=1, max_size=8
)


def with_arrow(rows: list[tuple[str, str]], path: Path, delimiter: str) -> None:
    table = pa.table({"text": [text for text, _ in rows], "label": [label for _, label in rows]})
    options = pa_csv.WriteOptions(delimiter=delimiter, quoting_style="all_valid")
    pa_csv.write_csv(table, path, options)


def with_pandas(rows: list[tuple[str, str]], path: Path, delimiter: str) -> None:
    frame = pd.DataFrame(rows, columns=["text", "label"])
    frame.to_csv(path, sep=delimiter, index=False, lineterminator="\r\n")


@pytest.mark.parametrize("write_table", [with_arrow, with_pandas])
@pytest.mark.parametrize(("suffix", "delimiter"), [(".csv", ","), (".tsv", "\t")])
@given(rows=written)
@settings(max_examples=25)
def test_tables_of_other_libraries_are_read_exactly(
    suffix: str, delimiter: str, write_table: Any, rows: list[tuple[str, str]]
) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, f"table{suffix}")
        write_table(rows, path, delimiter)
        found = zip(*read_table(path, "text", "label"), strict=True)
    assert list(found) == rows


# -- tables that are refused ---------------------------------------------------------------------

ROW = "data row {}, column 'label': found the label {}".format
# The suffix of a file, its content, and the message after its name.
REFUSED: list[tuple[str, Content, str]] = [
    *((suffix, content, ": found no row; allowed: one or more") for suffix, content in (
        (".csv", "text,label\n"), (".parquet", {"text": [], "label": []}))),
    *((suffix, content, ": found 0 columns 'text'; allowed: one, of nothing") for suffix, content in (
        (".csv", ""), (".jsonl", "\n"), (".jsonl", "{}\n"), (".parquet", {}))),
    (".csv", "text,label\na,spam\nb,\n", f", {ROW(2, '')}''; allowed: whole numbers from 0, or names"),
    (".csv", "text,label\na,1\nb,2\nc,3\n",
     ", column 'label': found the labels 1, 2, 3; allowed: 0 to 2 for 3 classes"),
    (".csv", "text,label\na,0\nb,2\n", "found the labels 0, 2; allowed: 0 to 1 for 2 classes, without a gap"),
    (".csv", "text,label\na,0\nb,-1\n", "labels -1, 0; allowed: 0 to 1 .* an example without a label"),
    (".csv", "text,label\na,0.0\nb,1.0\n", ROW(1, "'0.0'")),
    (".csv", "text,label\na,spam\nb,nan\n", ROW(2, "'nan'")),
    (".csv", f"text,label\na,0\nb,{'9' * 5000}\n", ROW(2, "'9999")),
    (".csv", "text,label\nJürgen,1\nb,0\n".encode("latin-1"), r"cannot be read \(.*Save it as UTF-8"),
    (".csv", GOOD.replace(",", ";"), "0 columns 'text'; allowed: one, of text;label .*separated by commas"),
    (".csv", "text,text,label\na,b,1\n", "found 2 columns 'text'; allowed: one"),
    (".csv", "buy now,spam\nsee you,ham\n",
     "0 columns 'text'; allowed: one, of buy now, spam .*The first line of a .csv names the columns"),
    (".csv", f"{GOOD}{GOOD}", "line 4: found the first line again, as if two files were joined"),
    (".csv", "text,label\nwell, hello,1\n", r"line 2: found 3 fields for text, label"),
    (".csv", "text,label\na,1\nb\n", r"line 3: found 1 field for text, label"),
    (".csv", 'text,label\nx,0\n"a,1\nb,0\n',
     r"line 4: found .*; allowed: .* quotes in pairs around a field"),
    (".csv", 'text,label\n"Hello" he said,ham\n', r"line 2: found .* quotes in pairs"),
    (".jsonl", '{"text": "a", "label": 1}\n{"text": "b", "label"\n', r"line 2: cannot be read \(Expecting"),
    (".jsonl", '{"text": "a", "label": 1, "text": "b"}\n', "a key twice among text, label, t"),
    (".jsonl", '["a", 1]\n', r'line 1: cannot be read \(found \["a", 1\]; allowed: an object of JSON\)'),
    (".jsonl", '{}\nnull\n', r"line 2: cannot be read \(found null; allowed: an object of JSON\)"),
    (".jsonl", '{"text": "a", "label": 1}\n{"text": "b"}\n', ROW(2, "None")),
    (".parquet", {"text": ["a", "b"], "label": [0.0, 1.0]}, ROW(1, "0.0")),
    (".parquet", {"text": ["a", "b"], "label": ["x", None]}, ROW(2, "None")),
    (".parquet", {"text": pa.array([b"J\xfcrgen"], pa.binary()).view(pa.string()), "label": [0]},
     "cannot be read .*Save it as UTF-8"),
    (".parquet", "PK\x03\x04", "cannot be read "),
    (".xlsx", "PK\x03\x04", ": found a .xlsx file; allowed: .csv, .tsv, .jsonl, .parquet"),
    *((suffix, LFS, ": .* pointer of git-lfs.*: git lfs pull") for suffix in (".csv", ".jsonl", ".parquet")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("suffix", "content", "message"), REFUSED, ids=[message[:40] for *_, message in REFUSED]
)
def test_invalid_tables_are_refused(
    tmp_path: Path, suffix: str, content: Content, message: str
) -> None:
    with pytest.raises(DatasetError, match=rf"(?s)train{re.escape(suffix)}.*{message}") as refusal:
        read(tmp_path, content, suffix=suffix)
    assert len(str(refusal.value)) < 1000


@pytest.mark.parametrize(
    ("labels", "alike"),
    [
        ("TRUE true b", "'TRUE' and 'true'"),
        ("1 01 002 2 a", "'01' and '1' (1 and 1 training examples), '002' and '2'"),
        ("1 true", "'1' and 'true'"),
        ("01 02 10 20", ""),
        ("00 a", ""),
    ],
)
def test_classes_in_two_notations_are_named(tmp_path: Path, labels: str, alike: str) -> None:
    rows = "".join(f"{label} text,{label}\n" for label in labels.split())
    found = alike_classes(read(tmp_path, f"text,label\n{rows}", f"text,label\n{rows}"))
    assert found.startswith(f"nearly the same: {alike}") if alike else found == ""


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ("x y", "z", "row 1.* 'z'; allowed: the classes of the training examples: x, y"),
        ("0 1", "2", "row 1.* label 2; allowed: 0 to 1; an example without a label cannot be used"),
        ("0 1", "x", "row 1.* label 'x'; allowed: 0 to 1"),
        ("0 1", "", "found no row; allowed: one or more"),
    ],
)
def test_unknown_test_labels_are_refused(
    tmp_path: Path, train: str, test: str, message: str
) -> None:
    with pytest.raises(DatasetError, match=rf"test\.csv.*{message}"):
        read(tmp_path, *("text,label\n" + "".join(f"a,{label}\n" for label in labels.split())
                         for labels in (train, test)))  # fmt: skip


def test_rows_of_several_lines_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A quote that is left open may swallow rows up to the next quote."""
    table = write(tmp_path / "t.csv", 'text,label\n\nx,0\n"a,1\nb,0\nc",1\nd,0\n')
    assert read_table(table, "label") == [["0", "1", "0"]]
    assert "t.csv: rows have line ends within quotes: 7 lines are 5 rows" in caplog.text
    caplog.clear()
    read_table(write(tmp_path / "t.csv", GOOD), "label")
    assert not caplog.text


# -- test sets from training tables, empty texts, texts that are cut -------------------------------


def test_test_set_of_a_table_is_drawn_by_text(tmp_path: Path) -> None:
    rows = [(f"text {number % 150}", "01"[number % 2]) for number in range(300)]
    with_pandas(rows, tmp_path / "all.csv", ",")
    keys = {"kind": "files", "train": str(tmp_path / "all.csv"), "test_from_train": 0.2}
    data = load_files(FilesSource.model_validate(keys))
    found = []
    for split in (data.train, data.test):
        labels = map(str, split.labels)
        found += (pairs := list(zip(split.inputs, labels, strict=True)))
        named = [split.where(place).rpartition(" ")[2] for place in range(len(pairs))]
        assert [rows[int(row) - 1] for row in named] == pairs
    assert sorted(found) == sorted(rows)
    assert not {*data.train.inputs} & {*data.test.inputs}, "equal texts are in the same part"
    assert 30 < len(data.test.inputs) < 90
    again = load_files(FilesSource.model_validate(keys | {"seed": 3}))
    assert again.test.inputs != data.test.inputs


def dataset(source: dict[str, Any], train_size: int = 3, **keys: Any) -> Dataset:
    known = {"title": "Mails", "kind": "text", "tokenizer": "any", "max_length": 4, "classes": 2}
    return Dataset.model_validate(known | {"source": source, "train_size": train_size} | keys)


SILENT: dict[str | None, str] = {
    "": "an empty text",
    "  ": "an empty text",
    "\u3000\t": "an empty text",
    "\u200b \ufeff\u2060": "an empty text (of characters that cannot be seen)",
    "one\0": "a text with a NUL character",
    None: "no text but None",
}


def test_empty_texts_are_refused_or_left_out(tmp_path: Path) -> None:
    lines = ["one", *SILENT, "two", "three"]
    table = {"text": lines, "label": [0] + [1] * (len(SILENT) + 1) + [0]}
    files = {split: str(write(tmp_path / f"{split}.parquet", table)) for split in ("train", "test")}
    mails = dataset({"kind": "files", **files}, test_size=3)
    tokenizer = tmp_path / "tokenizer.json"
    save_tokenizer(train_word_pieces(lines, 200), tokenizer)
    for look in (inspect, lambda *them: prepare(*them, tmp_path / "out", tokenizer)):
        with pytest.raises(DatasetError, match=r"train\.parquet, data row 2: an empty text"):
            look("mails", mails)
    skipping = mails.model_copy(update={"corrupt": "skip"})
    made = prepare("mails", skipping, tmp_path / "out", tokenizer)
    assert made.train_labels.tolist() == [0, 1, 0] and len(made.train_inputs) == 3
    assert [each.rpartition("/")[2] for each in made.metadata.skipped] == [
        f"{split}.parquet, data row {row}: {what}"
        for split in ("train", "test")
        for row, what in enumerate(SILENT.values(), start=2)
    ]


@pytest.mark.parametrize("max_length", [3, 4, 5, 6, 9, 10])
def test_bytes_that_are_cut_are_counted_as_the_tokenizer_counts_them(max_length: int) -> None:
    texts = ["abc", "abcd", "  a   B c d e", "ä ö"]
    blocks = Tokenizer.of(byte_tokenizer()).blocks(texts, max_length)
    list(blocks)
    labels = np.zeros(2, np.int64)
    data = LabelledData(Split(texts[:2], labels), Split(texts[2:], labels), ["a", "b"], {})
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
    mails = dataset({"kind": "files", **files}, test_size=2)
    inspect("mails", mails)
    assert "longer" not in caplog.text  # four words may be four tokens
    inspect("mails", mails.model_copy(update={"max_length": 3}))
    said = "mails: at least 1 of 5 texts are longer than max_length (3 tokens) and are cut"
    assert said in caplog.text
    found = prepare("mails", mails, tmp_path / "out", tmp_path / "tokenizer.json")
    row = "{}, data row {}".format
    # The rows "[CLS] one two [SEP]" of four texts are equal; "one two one" is in both files.
    assert found.metadata.duplicates == (f"{row(files['test'], 2)} = {row(files['train'], 3)}",)
    # Of 2 + 1 + 3 training tokens one does not fit beside [CLS] and [SEP]; of 4 + 3 test tokens three.
    cut = {split: (each.texts, each.share_of_tokens) for split, each in found.metadata.cut.items()}
    assert cut == {"train": (1, pytest.approx(1 / 6)), "test": (2, pytest.approx(3 / 7))}
    assert "mails: 2 of 2 test texts are longer than max_length (4 tokens)" in caplog.text
    assert "by 43 % of all tokens" in caplog.text
    # Without cut texts, metadata are as before.
    whole = mails.model_copy(update={"max_length": 6})
    prepare("mails", whole, tmp_path / "whole", tmp_path / "tokenizer.json")
    assert '"cut"' not in (tmp_path / "whole" / "metadata.json").read_text()


# -- tokenizers -----------------------------------------------------------------------------------

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
    return prepare_tokenizer("reader", section, {}, folder / "out.json")


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
    again = prepare_tokenizer("reader", section, {}, tmp_path / "again.json")
    assert again.identity == first.identity
    other = bert(tmp_path, [*PIECES, "dog"])
    assert other.identity != first.identity


WORDS = [f"{a}{b}ation" for a in ("transform", "rel", "cre", "not") for b in ("", "i", "er")]
TEXTS = [f"{WORDS[i % 12]} and {WORDS[(i * 5) % 12]}" for i in range(200)]


def test_vocabulary_is_trained_on_the_texts_of_a_dataset(tmp_path: Path) -> None:
    rows = [f"{text},{i % 2}" for i, text in enumerate(TEXTS)]
    (tmp_path / "train.csv").write_text("\n".join(["text,label", *rows]))
    files = {"kind": "files", "train": str(tmp_path / "train.csv"), "test_from_train": 0.5}
    public = dataset(files, train_size=100, test_size=100)
    section = reader({"kind": "train", "dataset": "public", "vocab_size": 200})
    made = prepare_tokenizer("reader", section, {"public": public}, tmp_path / "out.json")
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
            prepare_tokenizer("reader", section, {}, out)
        assert not out.exists()
    with pytest.raises(DatasetError, match="no such tokenizer") as raised:
        Tokenizer.open(out)
    assert raised.value.remake == (out,)
    image = Backbone(title="Images", architecture="vit", weights={"kind": "random"})
    with pytest.raises(DatasetError, match="images: reads no text"):
        prepare_tokenizer("images", image, {}, out)
