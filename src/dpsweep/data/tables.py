"""Readers of text tables: CSV, TSV, lines of JSON and parquet.

No row or character is lost silently: ambiguous content is an error that shows the line.
"""

import csv
import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyarrow import parquet

from dpsweep.base.files import require_content
from dpsweep.base.units import count
from dpsweep.config.messages import shorten, value
from dpsweep.data.arrays import reading
from dpsweep.data.prepared import DatasetError

# The start of a UTF-16 file: a byte order mark, or letters between zeros.
_UTF_16 = re.compile(rb"\xff\xfe|\xfe\xff|\0[^\0]\0[^\0]|[^\0]\0[^\0]\0")
_EXCEL = re.compile(r'"?sep=.', re.IGNORECASE)
_SPACE = re.compile(r"[ \t\r\n]*")


Columns = tuple[list[Any], list[Any]]
"""The texts and the labels of all rows."""


def column_names(path: Path) -> list[str]:
    """Return the names of a table's columns, in order.

    Raises:
        DatasetError: the file cannot be read.
    """
    with _reading(path) as (names, _):
        return names(path)


def read_table(path: Path, text: str, label: str) -> Columns:
    """Read two columns of a table in the format of its suffix; other columns are ignored.

    Raises:
        DatasetError: the file cannot be read, or does not have each column exactly once.
    """
    with _reading(path) as (read_names, read_columns):
        names = read_names(path)
        for name in (text, label):
            if names.count(name) != 1:
                found = f"{names.count(name)} columns" if name in names else "no column"
                hint = ""
                if path.suffix.lower() in (".csv", ".tsv"):
                    hint = ". The first line must name the columns" + (
                        ", separated by commas" if len(names) == 1 else ""
                    )
                raise DatasetError(
                    f"{path}: found {found} {name!r}; allowed: one, of {shorten(names)} "
                    f"(source.input_column, source.label_column){hint}"
                )
        return read_columns(path, text, label)


# Functions that read a format: the names of all columns, and two columns.
_Format = tuple[Callable[[Path], list[str]], Callable[[Path, str, str], Columns]]


@contextmanager
def _reading(path: Path) -> Iterator[_Format]:
    """Yield the readers for a file; errors in the block become a DatasetError with its name."""
    suffix = path.suffix.lower()
    if suffix not in _FORMATS:
        raise DatasetError(
            f"{path}: found a {path.suffix or 'nameless'} file; allowed: {', '.join(_FORMATS)}"
        )
    with reading(path, "no such file; put the table there"):
        require_content(path)
        if suffix != ".parquet":
            _refuse_utf_16(path)
        try:
            yield _FORMATS[suffix]
        except UnicodeDecodeError as error:
            raise DatasetError(
                f"{path}: cannot be read as {suffix} ({_undecodable(path, error)}). Save it as UTF-8"
            ) from error


def _refuse_utf_16(path: Path) -> None:
    with path.open("rb") as stream:
        beginning = stream.read(4)
    if _UTF_16.match(beginning):
        raise DatasetError(
            f"{path}: looks like UTF-16; allowed: UTF-8. Convert it: iconv -f UTF-16 -t UTF-8 "
            f"{path} > utf-8{path.suffix}"
        )


def _undecodable(path: Path, error: UnicodeDecodeError) -> str:
    """Describe the first line that is not UTF-8; return the error's own text for parquet."""
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            line.decode()
        except UnicodeDecodeError as wrong:
            shown = value(line[max(0, wrong.start - 20) :].decode(errors="backslashreplace"))
            return f"line {number} is not UTF-8: {shown}"
    return str(error)


# -- separated values ------------------------------------------------------------------------


class _QuotesError(DatasetError):
    """Quotes that do not enclose whole fields; the message contains the line."""


@dataclass(frozen=True)
class _Row:
    fields: list[str]
    lines: list[str]
    """lines of the file that it spans, with their line ends"""
    last: int
    """number of its last line, from 1"""


def _separated(usual: str) -> _Format:
    def names(path: Path) -> list[str]:
        with path.open(encoding="utf-8-sig") as stream:
            first = stream.readline()
        if _EXCEL.match(first):
            raise DatasetError(
                f"{_at(path, 1, first)}: found a separator, which only Excel reads; allowed: the names of "
                "the columns. Remove this line"
            )
        return next(_rows(path, _delimiter(path, usual), quoted=True)).fields

    def columns(path: Path, text: str, label: str) -> Columns:
        delimiter = _delimiter(path, usual)
        try:
            return _columns(path, delimiter, text, label, quoted=True)
        except _QuotesError:
            # In files with tabs, quotes are often text, and every line is a row.
            with suppress(DatasetError):
                if delimiter == "\t":
                    return _columns(path, delimiter, text, label, quoted=False)
            raise

    return names, columns


def _delimiter(path: Path, usual: str) -> str:
    """Return the first separator that splits the header; the usual one is tried first, and is the default."""
    for each in (usual, ";", ",", "\t"):
        with suppress(_QuotesError):
            if len(next(_rows(path, each, quoted=True)).fields) > 1:
                return each
    return usual


def _columns(path: Path, delimiter: str, text: str, label: str, quoted: bool) -> Columns:
    """Read two columns.

    Raises:
        _QuotesError: quotes do not enclose whole fields.
        DatasetError: a row and the header differ in their number of fields.
    """
    rows = _rows(path, delimiter, quoted)
    header = next(rows)
    width, of_text, of_label = len(header.fields), *map(header.fields.index, (text, label))
    texts: list[str] = []
    labels: list[str] = []
    within: list[tuple[int, str, list[str]]] = []
    for row in rows:
        if len(row.fields) != width:
            raise DatasetError(
                f"{_at(path, row.last, row.lines[-1])}: found {count(len(row.fields), 'field')}; allowed: "
                f"{width}, as in the header. Put a field that contains {value(delimiter)} in quotes"
            )
        texts.append(row.fields[of_text])
        labels.append(row.fields[of_label])
        if len(row.lines) > 1:
            first = row.last - len(row.lines) + 1
            # The label of the row itself is in its first or its last line.
            kept = slice(1, None) if of_label < of_text else slice(None, -1)
            within += [
                (number, line, line.strip("\r\n").split(delimiter))
                for number, line in list(enumerate(row.lines, start=first))[kept]
            ]
    known = set(labels)
    numbers = all(map(str.isdecimal, known))
    for number, line, fields in within:
        # A line of text may have as many commas as a row, but hardly as many tabs.
        if len(fields) == width and (
            delimiter == "\t"
            or fields[of_label] in known
            or (numbers and fields[of_label].isdecimal())
        ):
            raise _QuotesError(
                f"{_at(path, number, line)}: found what looks like a row of its own inside of quotes; "
                'allowed: quotes in pairs around a field, and "" for a quote within. If this is text, save '
                "the table as .jsonl"
            )
    return texts, labels


def _rows(path: Path, delimiter: str, quoted: bool) -> Iterator[_Row]:
    """Yield the header and the rows, without empty lines.

    Raises:
        _QuotesError: text after the closing quote of a field, or a quote that is never closed.
        DatasetError: the file is empty.
    """
    csv.field_size_limit(sys.maxsize)
    lines: list[str] = []

    def noted() -> Iterator[str]:
        for line in stream:
            lines.append(line)
            yield line

    with path.open(encoding="utf-8-sig", newline="") as stream:
        quotes = '"' if quoted else None
        reader = csv.reader(noted(), delimiter=delimiter, quotechar=quotes, strict=True)
        try:
            for fields in reader:
                if fields:
                    yield _Row(fields, lines.copy(), reader.line_num)
                lines.clear()
        except csv.Error as error:
            if "expected after" in str(error):
                raise _QuotesError(
                    f"{_at(path, reader.line_num, lines[-1])}: found text after the closing quote of a "
                    'field; allowed: "" for a quote within a quoted field'
                ) from None
            raise _QuotesError(
                f"{_at(path, reader.line_num - len(lines) + 1, lines[0])}: found a quote that is never "
                "closed; allowed: quotes in pairs around a field"
            ) from None
        if reader.line_num == 0:
            raise DatasetError(f"{path}: empty; allowed: a header and at least one row")


# -- lines of JSON, and parquet ----------------------------------------------------------------


def _objects(path: Path, text: str = "", label: str = "") -> Iterator[dict[str, Any]]:
    """Yield the objects of a file, usually one for each line.

    Raises:
        DatasetError: a value is not an object, or has one of the two columns twice.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        if twice := [name for name in (text, label) if names.count(name) > 1]:
            raise ValueError(f"{value(twice[0])} twice")
        return dict(pairs)

    content = path.read_text(encoding="utf-8-sig")
    decoder = json.JSONDecoder(object_pairs_hook=unique)
    place = _SPACE.match(content).end()  # type: ignore[union-attr]
    while place < len(content):
        try:
            found, end = decoder.raw_decode(content, place)
            if not isinstance(found, dict):
                raise ValueError("no object")
        except (ValueError, RecursionError) as error:
            line = content[place:].partition("\n")[0]
            raise DatasetError(
                f"{_at(path, content.count(chr(10), 0, place) + 1, line)}: found "
                f"{getattr(error, 'msg', error)}; allowed: one object of JSON in each line"
            ) from None
        yield found
        place = _SPACE.match(content, end).end()  # type: ignore[union-attr]


def _json_names(path: Path) -> list[str]:
    return list({name: None for each in _objects(path) for name in each})


def _json_columns(path: Path, text: str, label: str) -> Columns:
    rows = [(each.get(text), each.get(label)) for each in _objects(path, text, label)]
    return [found for found, _ in rows], [found for _, found in rows]


def _parquet_names(path: Path) -> list[str]:
    return list(parquet.read_schema(path).names)


def _parquet_columns(path: Path, text: str, label: str) -> Columns:
    table = parquet.ParquetFile(path).read(columns=[text, label])
    return table.column(text).to_pylist(), table.column(label).to_pylist()


_FORMATS: dict[str, _Format] = {
    ".csv": _separated(","),
    ".tsv": _separated("\t"),
    ".jsonl": (_json_names, _json_columns),
    ".parquet": (_parquet_names, _parquet_columns),
}


def _at(path: Path, number: int, line: str) -> str:
    return f"{path}, line {number} ({value(line.strip(chr(10) + chr(13)))})"
