"""Facts about a new dataset, from its labels alone: layout, classes and sizes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import ValidationError

from dpsweep.config import ArraysSource, FilesSource, FolderSource, HubSource
from dpsweep.config.messages import explain, shorten, unknown
from dpsweep.data.embeddings import load_embeddings
from dpsweep.data.examples import LabelledData
from dpsweep.data.hub import load_hub, open_hub
from dpsweep.data.images import load_folder
from dpsweep.data.prepare import alike_classes
from dpsweep.data.prepared import DatasetError
from dpsweep.data.texts import column_names, leave_out_unreadable, load_files, long_texts
from dpsweep.recommend.draft import MAX_LENGTH, FoundDataset

TEST_SHARE = 0.2
"""Share of the examples that becomes the test set of a dataset without one."""

_CUT = {"test_from_train": TEST_SHARE, "seed": 0}

# Usual names of columns, in upper or lower case; used where the types of columns are not enough.
_LABELS = ("label", "labels", "class", "category", "target", "sentiment", "topic", "intent")
_TEXTS = (
    "text",
    "texts",
    "sentence",
    "content",
    "review",
    "document",
    "message",
    "tweet",
    "comment",
)

Source = TypeVar("Source", ArraysSource, FilesSource, FolderSource, HubSource)


def look_at_folder(folder: Path) -> FoundDataset:
    """Look at a folder of images: ``<split>/<class>/<image>``, or ``<class>/<image>``.

    Args:
        folder: the dataset.

    Raises:
        DatasetError: it cannot be read as such a folder.
    """
    place = folder.expanduser()
    inside = sorted(place.iterdir()) if place.is_dir() else []
    folders = [each.name for each in inside if each.is_dir() and not each.name.startswith(".")]
    train, test = choose_splits(folders)
    source: dict[str, Any] = {"kind": "folder", "path": str(folder)}
    source |= {"train_folders": train or ["."]}
    source |= {"test_folder": test} if test else _CUT
    reading = [
        f"training images from {shorten(train)}" if train else "a folder for each class",
        f"test images from {test}" if test else f"{TEST_SHARE:.0%} of them for testing",
        *(_not_read(folders, [*train, test]) if train else []),
    ]
    data = load_folder(_valid(FolderSource, source))
    return _found("image", source, data, reading)


def choose_splits(names: Iterable[str]) -> tuple[list[str], str | None]:
    """Return the training splits and the test split among some names.

    Validation data are training data if there is a test split, else they are the test split.

    >>> choose_splits(["test", "train", "val"]), choose_splits(["train", "validation"])
    ((['train', 'val'], 'test'), (['train'], 'validation'))
    """
    known = {"train": "train", **dict.fromkeys(("validation", "val", "dev"), "val"), "test": "test"}
    found = {use: name for name, use in known.items() if name in set(names)}
    if "train" not in found:
        return [], None
    test = found.pop("test", None) or found.pop("val", None)
    return list(found.values()), test


def look_at_hub(
    repository: str,
    input_column: str | None = None,
    label_column: str | None = None,
    configuration: str | None = None,
) -> FoundDataset:
    """Look at a dataset of images or texts on the Hugging Face hub; download it if needed.

    Args:
        repository: owner/name.
        input_column: of images or texts; by default the only one.
        label_column: by default the only one of class labels, or the one with a usual name.
        configuration: needed if the repository has several.

    Raises:
        DatasetError: it cannot be downloaded or read, or splits or columns are ambiguous.
    """
    asked: dict[str, Any] = {"kind": "hub", "id": repository}
    if configuration is not None:
        asked |= {"configuration": configuration}
    opened = open_hub(_valid(HubSource, asked))
    splits = list(opened.splits)
    train, test = choose_splits(splits)
    if not train:
        raise DatasetError(
            f"{repository}: found the splits {shorten(splits)}; allowed: one of train"
        )
    if test is None:
        raise DatasetError(
            f"{repository}: found the splits {shorten(splits)}; allowed: one to train on and one to "
            "test on. Save it with such splits, or as a folder of images"
        )
    columns = _types(opened.splits[train[0]])
    _require_column(repository, "--input-column", input_column, list(columns))
    _require_column(repository, "--label-column", label_column, list(columns))
    label = label_column or _column(
        repository, "--label-column", _of_type(columns, "ClassLabel"), _LABELS, columns
    )
    images = _of_type(columns, "Image")
    rest = [name for name in images or _of_type(columns, "string") if name != label]
    column = input_column or _column(repository, "--input-column", rest, _TEXTS, columns)
    kind = "image" if columns.get(column) == "Image" else "text"
    source = asked | {
        "revision": opened.revision,
        "train_splits": train,
        "test_split": test,
        "input_column": column,
        "label_column": label,
    }
    reading = [
        f"training examples from {shorten(train)}, test examples from {test}",
        f"{kind}s of column {column!r}, labels of column {label!r}",
        *_not_read(splits, [*train, test]),
    ]
    return _found(kind, source, load_hub(_valid(HubSource, source), kind), reading)


def look_at_tables(
    train: Path,
    test: Path | None = None,
    input_column: str | None = None,
    label_column: str | None = None,
) -> FoundDataset:
    """Look at one or two tables of texts.

    Args:
        train: csv, tsv, jsonl or parquet.
        test: another such file; without it, a share of the rows of ``train`` becomes the test set.
        input_column: of texts; by default the one with a usual name, or the only other one.
        label_column: of labels; likewise.

    Raises:
        DatasetError: a file cannot be read, lacks a column, a text or a label, or is given twice, or the
            columns are ambiguous.
    """
    names = column_names(train.expanduser())
    for option, asked in (("--input-column", input_column), ("--label-column", label_column)):
        _require_column(str(train), option, asked, names)
    label = label_column or _first(_LABELS, [name for name in names if name != input_column])
    text = input_column or _first(_TEXTS, [name for name in names if name != label])
    rest = [name for name in names if name not in (text, label)]
    if len(rest) == 1 and (text or label):
        text, label = text or rest[0], label or rest[0]
    source: dict[str, Any] = {
        **{"kind": "files", "train": str(train)},
        **(_CUT if test is None else {"test": str(test)}),
        "input_column": text or _column(str(train), "--input-column", [], (), names),
        "label_column": label or _column(str(train), "--label-column", [], (), names),
    }
    data = load_files(_valid(FilesSource, source))
    reading = [f"texts of column {text!r}, labels of column {label!r}", _rows(data)]
    return _found("text", source, data, reading)


def look_at_embeddings(
    train: Path,
    test: Path | None = None,
    labels: Sequence[Path] = (),
    input_column: str | None = None,
    label_column: str | None = None,
) -> FoundDataset:
    """Look at one or two files of embeddings.

    Args:
        train: npz, npy, safetensors or parquet.
        test: another such file; without it, a share of the rows of ``train`` becomes the test set.
        labels: separate files with the labels of ``train`` and ``test``; none if the same files hold them.
        input_column: the array of embeddings; by default the one with a usual name, or the only one.
        label_column: of labels; likewise.

    Raises:
        DatasetError: a file cannot be read, or its arrays are ambiguous.
    """
    if len(labels) > (1 if test is None else 2):
        raise DatasetError(
            f"--labels: found {shorten(labels)}; allowed: one file for each of embeddings"
        )
    keys = dict(zip(("train_labels", "test_labels"), map(str, labels), strict=False))
    source: dict[str, Any] = {
        **{"kind": "arrays", "train": str(train)},
        **(_CUT if test is None else {"test": str(test)}),
        **keys,
        **({} if input_column is None else {"input_column": input_column}),
        **({} if label_column is None else {"label_column": label_column}),
    }
    data = load_embeddings(_valid(ArraysSource, source))
    array = data.train.inputs
    reading = [f"{array.dtype} embeddings of {array.shape[1]} numbers", _rows(data)]
    return replace(_found("embedding", source, data, reading), dimension=array.shape[1])


def _not_read(names: Iterable[str], read: Sequence[str | None]) -> list[str]:
    """Return a note on the folders or splits that are not read, if there are any."""
    others = [name for name in names if name not in read]
    return [f"not read: {shorten(others)}"] if others else []


def _rows(data: LabelledData) -> str:
    return " and ".join(
        f"{len(split.labels):,} rows to {use} on"
        for split, use in ((data.train, "train"), (data.test, "test"))
    )


def _found(
    kind: str, source: dict[str, Any], data: LabelledData, reading: Sequence[str]
) -> FoundDataset:
    cut = ""
    if kind == "text":
        cut = long_texts(data, MAX_LENGTH)
        data = leave_out_unreadable(data)
    train_counts, test_counts = (
        np.bincount(split.labels, minlength=len(data.classes)).tolist()
        for split in (data.train, data.test)
    )
    alike = alike_classes(data)
    return FoundDataset(
        kind=kind,
        source=source,
        classes=data.classes,
        train_counts=train_counts,
        test_counts=test_counts,
        skipped=len(data.skipped),
        reading="; ".join(filter(None, [*reading, cut, alike and f"classes that are {alike}"])),
    )


def _valid(model: type[Source], keys: dict[str, Any]) -> Source:
    """Make a source from its keys.

    Raises:
        DatasetError: a study must not have such a source.
    """
    try:
        return model.model_validate(keys)
    except ValidationError as error:
        mistakes = explain(error, keys)
        raise DatasetError("\n".join(mistakes)) from None


def _first(names: Iterable[str], found: Sequence[str]) -> str | None:
    """Return the column with the first of some names, in upper or lower case."""
    plain = {each.strip().casefold(): each for each in reversed(found)}
    return next((plain[name] for name in names if name in plain), None)


def _types(split: Any) -> dict[str, str]:
    """Return the type of every column: Image, ClassLabel, string and so on."""
    return {
        name: getattr(feature, "dtype", "")
        if type(feature).__name__ == "Value"
        else type(feature).__name__
        for name, feature in (split.features or {}).items()
    }


def _of_type(columns: Mapping[str, str], kind: str) -> list[str]:
    return [name for name, each in columns.items() if each == kind]


def _require_column(where: str, option: str, asked: str | None, columns: Sequence[str]) -> None:
    if asked is not None and columns and asked not in columns:
        raise DatasetError(f"{where}: {option}: {unknown(asked, columns)}")


def _column(
    repository: str,
    option: str,
    candidates: Sequence[str],
    names: Sequence[str],
    columns: Iterable[str],
) -> str:
    """Return the only candidate, or the column with one of some names."""
    if len(candidates) == 1:
        return candidates[0]
    named = _first(names, candidates or list(columns))
    if named is None:
        raise DatasetError(
            f"{repository}: it is not clear which column is meant; say {option}, one of: "
            f"{shorten(list(columns))}"
        )
    return named
