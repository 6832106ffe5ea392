"""Labelled texts before they are tokenized: tables of them, and how class labels become numbers."""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from dpsweep.base.files import require_file
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


@dataclass(frozen=True)
class TextSplit:
    """One split. Texts can be iterated as often as needed, and need not be in memory."""

    texts: Iterable[str]
    labels: npt.NDArray[np.int64]
    where: Callable[[int], str] = str
    """what the text at a place is called, for messages"""

    def readable(self) -> tuple["TextSplit", list[str]]:
        """Return the texts that say something, and what is wrong with each of the others."""
        wrong = {
            place: found for place, text in enumerate(self.texts) if (found := _unreadable(text))
        }
        kept = np.delete(np.arange(len(self.labels)), list(wrong))
        readable = TextSplit(
            _Readable(self.texts), self.labels[kept], lambda place: self.where(int(kept[place]))
        )
        return readable, [f"{self.where(place)}: {found}" for place, found in wrong.items()]


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


@dataclass(frozen=True)
class Texts:
    """Result of reading a source of texts."""

    train: TextSplit
    test: TextSplit
    classes: list[str]
    origin: str
    revision: str | None


# -- labels ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelColumn:
    """The labels of one split as they were found."""

    table: str
    """where they were found, for messages"""
    name: str
    values: Sequence[Any]
    where: Callable[[int], str]
    """what the row at a place is called"""

    def labels(self) -> list[int | str]:
        """Return whole numbers and names of classes.

        Names lose outer spaces and take one form of Unicode, so that one class has one name.

        Raises:
            DatasetError: there is no row, or a label is missing or neither of the two.
        """
        if not self.values:
            raise DatasetError(f"{self.table}: found no row; allowed: at least one example")
        found: list[int | str] = []
        for place, value in enumerate(self.values):
            label = str(value) if isinstance(value, bool) else value
            if isinstance(label, str):
                label = unicodedata.normalize("NFC", label.strip())
            if label == "" or type(label) not in (int, str):
                self.refuse(place, value, "whole numbers from 0, or names of classes")
            found.append(label)
        return found

    def refuse(self, place: int, label: Any, allowed: str) -> NoReturn:
        """Name the row of a label that cannot be used.

        Raises:
            DatasetError: always.
        """
        raise DatasetError(
            f"{self.where(place)}, column {self.name!r}: found the label {shorten([repr(label)])}; "
            f"allowed: {allowed}"
        )


def encode_labels(
    train: LabelColumn, test: LabelColumn, names: Sequence[str] | None = None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], list[str]]:
    """Return training labels, test labels and the names of the classes.

    Whole numbers stay as they are; other labels are names of classes, numbered in alphabetical order.

    Args:
        train: the labels of the training split.
        test: of the test split.
        names: of the classes, where the source knows them; labels are then whole numbers.

    Raises:
        DatasetError: a label that is missing or of another kind, numbers that do not count from 0,
            or a test label that training has not.
    """
    columns = [(train, train.labels()), (test, test.labels())]
    numbers: dict[int | str, int]
    if names is not None or all(isinstance(label, int) for label in columns[0][1]):
        if names is None:
            names = list(map(str, range(_count_classes(train, columns[0][1]))))
        numbers = {number: number for number in range(len(names))}
        allowed = f"0 to {len(names) - 1}; an example without a label cannot be used"
    else:
        columns = [(column, [str(label) for label in labels]) for column, labels in columns]
        names = sorted({str(label) for label in columns[0][1]})
        numbers = {name: number for number, name in enumerate(names)}
        allowed = f"the classes of the training examples: {shorten(names)}"
    encoded = []
    for column, labels in columns:
        for place, label in enumerate(labels):
            if label not in numbers:
                column.refuse(place, label, allowed)
        encoded.append(np.array([numbers[label] for label in labels], dtype=np.int64))
    return encoded[0], encoded[1], list(names)


def _count_classes(column: LabelColumn, labels: Sequence[Any]) -> int:
    """Return K for labels that are 0 to K - 1, all of them."""
    where = f"{column.table}, column {column.name!r}"
    found = sorted(set(labels))
    if found[0] < 0:
        column.refuse(
            labels.index(found[0]), found[0], "from 0; an example without a label cannot be used"
        )
    if found[0] > 0 and found[-1] - found[0] == len(found) - 1:
        raise DatasetError(
            f"{where}: labels start at {found[0]}: found {found[0]} to {found[-1]}; allowed: 0 to "
            f"{len(found) - 1}. Subtract {found[0]}, or write names of classes"
        )
    if found[-1] != len(found) - 1:
        raise DatasetError(
            f"{where}: found the labels {shorten(found)}; allowed: 0 to {len(found) - 1} for "
            f"{len(found)} classes, without a gap. Number them anew, or write names of classes"
        )
    return len(found)


# -- tables ----------------------------------------------------------------------------------


def load_files(source: FilesSource) -> Texts:
    """Read two tables, whose format is told by their suffix; labels are numbers or class names.

    Raises:
        DatasetError: a file cannot be read, or lacks a column, a text or a label.
    """
    (train, labels), (test, test_labels) = (
        _read(source, Path(name).expanduser()) for name in (source.train, source.test)
    )
    labels, test_labels = _numbers_of_text(labels, test_labels)
    train_numbers, test_numbers, classes = encode_labels(labels, test_labels)
    return Texts(
        train=TextSplit(train, train_numbers, labels.where),
        test=TextSplit(test, test_numbers, test_labels.where),
        classes=classes,
        origin=f"{source.train}, {source.test}",
        revision=None,
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
