"""Labelled texts before they are tokenized: those of tables, and those that say nothing."""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpsweep.base.files import require_file
from dpsweep.data.examples import LabelColumn, LabelledData, Split, encode_labels
from dpsweep.data.prepared import DatasetError
from dpsweep.study.config import FilesSource
from dpsweep.study.messages import brief, shorten

_WHOLE_NUMBER = re.compile(r"0|-?[1-9]\d*")
_OTHER_NUMBER = re.compile(r"[-+]?(\d+\.\d*|\.\d+|\d+e[-+]?\d+|nan|inf)", re.IGNORECASE)
_LONGEST_ROW = 2**28  # bytes
# Spaces and line ends, and what cannot be seen: control characters, those of zero width.
_UNSEEN = {"Cc", "Cf", "Zl", "Zp", "Zs"}
# How a file of UTF-16 begins: with its mark, or with a letter beside a zero.
_UTF_16 = re.compile(rb"\xff\xfe|\xfe\xff|\0[^\0]\0[^\0]|[^\0]\0[^\0]\0")


# -- texts -----------------------------------------------------------------------------------


def leave_out_unreadable(data: LabelledData) -> LabelledData:
    """Leave out the texts that say nothing, and say what is wrong with each of them."""
    skipped: list[str] = []
    splits = []
    for split in (data.train, data.test):
        wrong = {
            place: found for place, text in enumerate(split.inputs) if (found := _unreadable(text))
        }
        skipped += [f"{split.where(place)}: {found}" for place, found in wrong.items()]
        splits.append(split.without(list(wrong), _Readable(split.inputs)))
    return replace(data, train=splits[0], test=splits[1], skipped=skipped)


def _unreadable(text: str) -> str | None:
    """Say what is wrong with a text that no network should read."""
    if "\0" in text:
        return "a text with a NUL character"
    if all(unicodedata.category(character) in _UNSEEN for character in text):
        return "an empty text" + (" (of characters that cannot be seen)" if text.strip() else "")
    return None


@dataclass(frozen=True)
class _Readable:
    """Texts without those that say nothing."""

    texts: Iterable[str]

    def __iter__(self) -> Iterator[str]:
        return (text for text in self.texts if not _unreadable(text))


# -- tables ----------------------------------------------------------------------------------


def load_files(source: FilesSource) -> LabelledData:
    """Read two tables, whose format is told by their suffix; labels are numbers or class names.

    Raises:
        DatasetError: a file cannot be read, or lacks a column, a text or a label.
    """
    (train, labels), (test, test_labels) = (
        _read(source, Path(name).expanduser()) for name in (source.train, source.test)
    )
    labels, test_labels = _numbers_of_text(labels, test_labels)
    train_numbers, test_numbers, classes = encode_labels(labels, test_labels)
    return LabelledData(
        train=Split(train, train_numbers, labels.where),
        test=Split(test, test_numbers, test_labels.where),
        classes=classes,
        origin=f"{source.train}, {source.test}",
    )


def _numbers_of_text(train: LabelColumn, test: LabelColumn) -> tuple[LabelColumn, LabelColumn]:
    """Read whole numbers where labels are text, as in CSV, and all of training are such numbers.

    Raises:
        DatasetError: a label is another kind of number.
    """
    for column in (train, test):
        for place, label in enumerate(column.values):
            if isinstance(label, str) and _OTHER_NUMBER.fullmatch(label.strip()):
                column.refuse(place, label, "whole numbers from 0, or names of classes")
    if not all(_is_whole(label) for label in train.values):
        return train, test
    return (
        replace(train, values=[int(label) for label in train.values]),
        replace(test, values=[int(each) if _is_whole(each) else each for each in test.values]),
    )


def _is_whole(label: Any) -> bool:
    return isinstance(label, str) and _WHOLE_NUMBER.fullmatch(label.strip()) is not None


def _read(source: FilesSource, path: Path) -> tuple[list[str], LabelColumn]:
    """Return the texts and labels of one table."""
    table = _table(source, path)
    columns = []
    for name in (source.input_column, source.label_column):
        count = table.column_names.count(name)
        if count != 1:
            found = f"{count} columns" if count else "no column"
            hint = (
                "" if count or len(table.column_names) > 1 else ". Are columns separated by commas?"
            )
            raise DatasetError(
                f"{path}: found {found} {name!r}; allowed: one, of {shorten(table.column_names)} "
                f"(source.input_column, source.label_column){hint}"
            )
        columns.append(table.column(name).to_pylist())
    texts, labels = columns

    def where(place: int) -> str:
        return f"{path}, data row {place + 1}"

    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise DatasetError(
                f"{where(place)}, column {source.input_column!r}: found {shorten([repr(text)])}; "
                "allowed: text"
            )
    return texts, LabelColumn(str(path), source.label_column, labels, where)


def _table(source: FilesSource, path: Path) -> Any:
    """Read a file as a table of pyarrow."""
    # Only the preparation of such a dataset needs it.
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import csv, json, parquet  # noqa: PLC0415

    text = {source.input_column: pa.string()}

    def separated(delimiter: str) -> Any:
        return csv.read_csv(
            path,
            read_options=csv.ReadOptions(block_size=_LONGEST_ROW),
            parse_options=csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=csv.ConvertOptions(
                column_types={**text, source.label_column: pa.string()}
            ),
        )

    readers: dict[str, Callable[[], Any]] = {
        ".csv": lambda: separated(","),
        ".tsv": lambda: separated("\t"),
        ".jsonl": lambda: json.read_json(
            path,
            read_options=json.ReadOptions(block_size=_LONGEST_ROW),
            parse_options=json.ParseOptions(
                explicit_schema=pa.schema(text), newlines_in_values=True
            ),
        ),
        ".parquet": lambda: parquet.read_table(path),
    }
    suffix = path.suffix.lower()
    if suffix not in readers:
        raise DatasetError(
            f"{path}: found a {path.suffix or 'nameless'} file; allowed: {', '.join(readers)}"
        )
    try:
        require_file(path)
        if suffix != ".parquet":
            _refuse_utf_16(path)
        table = readers[suffix]()
        return table.rename_columns(table.column_names)  # names are decoded when they are asked for
    except FileNotFoundError:
        raise DatasetError(f"{path}: no such file; put the table there") from None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        encoding = ". Save it as UTF-8" if "UTF8" in str(error) or "utf-8" in str(error) else ""
        raise DatasetError(
            f"{path}: cannot be read as {suffix} ({brief(error)}){encoding}"
        ) from error


def _refuse_utf_16(path: Path) -> None:
    with path.open("rb") as stream:
        beginning = stream.read(4)
    if _UTF_16.match(beginning):
        raise DatasetError(
            f"{path}: looks like UTF-16; allowed: UTF-8. Convert it: iconv -f UTF-16 -t UTF-8 "
            f"{path} > utf-8{path.suffix}"
        )
