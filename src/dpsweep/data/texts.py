"""Labelled texts before they are tokenized, and how class labels become numbers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpsweep.data.prepared import DatasetError
from dpsweep.study.config import FilesSource


@dataclass(frozen=True)
class TextSplit:
    """One split. Texts can be iterated as often as needed, and need not be in memory."""

    texts: Iterable[str]
    labels: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Texts:
    """What a source of texts turns into."""

    train: TextSplit
    test: TextSplit
    classes: list[str]
    origin: str
    revision: str | None


def encode_labels(
    what: str, train: Sequence[Any], test: Sequence[Any], names: Sequence[str] | None = None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], list[str]]:
    """Return training labels, test labels and the names of the classes.

    Integers stay as they are; other labels are class names, numbered in alphabetical order.

    Args:
        what: the source, for messages.
        train: labels, integers or strings.
        test: likewise.
        names: of the classes, where the source knows them.

    Raises:
        DatasetError: a label of another kind, or a test label that training has not.
    """
    for value in (*train, *test):
        if type(value) not in (int, str):
            raise DatasetError(
                f"{what}: found the label {value!r}; allowed: integers and class names"
            )
    if names is not None:
        classes = list(names)
    elif all(isinstance(value, int) for value in train):
        classes = [str(value) for value in range(max(train) + 1)]
    else:
        classes = sorted({str(value) for value in train})
        number = {name: index for index, name in enumerate(classes)}
        if unknown := sorted({str(value) for value in test} - set(number)):
            raise DatasetError(
                f"{what}: classes of the test split that training has not: {unknown}"
            )
        train = [number[str(value)] for value in train]
        test = [number[str(value)] for value in test]
    return np.array(train, dtype=np.int64), np.array(test, dtype=np.int64), classes


def load_files(source: FilesSource) -> Texts:
    """Read two tables, CSV or parquet by their suffix; labels are integers or class names.

    Raises:
        DatasetError: a file cannot be read, or lacks a column, a text or a label.
    """
    train, test = (_read(source, Path(name).expanduser()) for name in (source.train, source.test))
    what = f"{source.train}, column {source.label_column!r}"
    train_labels, test_labels, classes = encode_labels(what, train[1], test[1])
    return Texts(
        train=TextSplit(train[0], train_labels),
        test=TextSplit(test[0], test_labels),
        classes=classes,
        origin=f"{source.train}, {source.test}",
        revision=None,
    )


def _read(source: FilesSource, path: Path) -> tuple[list[str], list[Any]]:
    """Return the texts and labels of one table."""
    # Only the preparation of such a dataset needs it.
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import csv, parquet  # noqa: PLC0415

    readers = {
        ".csv": lambda: csv.read_csv(
            path,
            parse_options=csv.ParseOptions(newlines_in_values=True),
            convert_options=csv.ConvertOptions(column_types={source.input_column: pa.string()}),
        ),
        ".parquet": lambda: parquet.read_table(path),
    }
    if path.suffix not in readers:
        raise DatasetError(
            f"{path}: found a {path.suffix or 'nameless'} file; allowed: .csv, .parquet"
        )
    try:
        table = readers[path.suffix]()
    except FileNotFoundError:
        raise DatasetError(f"{path}: no such file; put the table there") from None
    except (pa.ArrowException, OSError) as error:
        raise DatasetError(f"{path}: cannot be read as {path.suffix} ({error})") from error
    columns = []
    for name in (source.input_column, source.label_column):
        if name not in table.column_names:
            raise DatasetError(
                f"{path}: found no column {name!r}; allowed: {', '.join(table.column_names)}"
            )
        columns.append(table.column(name).to_pylist())
    texts, labels = columns
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise DatasetError(
                f"{path}, row {row}, column {source.input_column!r}: found {text!r}; allowed: text"
            )
    return texts, labels
