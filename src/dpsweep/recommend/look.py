"""Describe a dataset that no study has yet, from labels alone: layout, classes and sizes."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpsweep.data.examples import LabelledData
from dpsweep.data.folder import load_folder
from dpsweep.data.hub import load_hub, open_hub
from dpsweep.data.prepared import DatasetError
from dpsweep.data.texts import leave_out_unreadable, load_files
from dpsweep.recommend.draft import FoundDataset
from dpsweep.study.config import FilesSource, FolderSource, HubSource
from dpsweep.study.messages import shorten

TEST_SHARE = 0.2
"""Share of the training images that is held out where there is no test folder."""

# Names of splits, as folders and on the hub.
_TRAIN = ("train", "training")
_VALIDATION = ("validation", "valid", "val", "dev")
_TEST = ("test", "testing")
# Names of columns, where the types of columns do not tell.
_LABELS = ("label", "labels", "class", "category", "target")
_TEXTS = ("text", "sentence", "content", "review")


def look_at_folder(folder: Path) -> FoundDataset:
    """Look at a folder of images: ``<split>/<class>/<image>``, or ``<class>/<image>``.

    Raises:
        DatasetError: it cannot be read as such a folder.
    """
    source: dict[str, Any] = {"kind": "folder", "path": str(folder)}
    place = folder.expanduser()
    splits = [each.name for each in place.iterdir() if each.is_dir()] if place.is_dir() else []
    if train := _first(_TRAIN, splits):
        train_folders, test = _splits(train, splits)
        source |= {"train_folders": train_folders}
        source |= {"test_folder": test} if test else {"test_from_train": TEST_SHARE}
    else:
        source |= {"train_folders": ["."], "test_from_train": TEST_SHARE}
    return _found("image", source, load_folder(FolderSource.model_validate(source)))


def look_at_hub(
    repository: str,
    input_column: str | None = None,
    label_column: str | None = None,
    configuration: str | None = None,
) -> FoundDataset:
    """Look at a dataset of the Hugging Face hub, of images or texts. It is fetched if needed.

    Args:
        repository: owner/name.
        input_column: of images or texts; by default the only one.
        label_column: by default the only one of class labels, or the one that is called so.
        configuration: which one, where the repository has several.

    Raises:
        DatasetError: it cannot be fetched or read, or it is not clear what is what.
    """
    asked: dict[str, Any] = {"kind": "hub", "id": repository}
    if configuration is not None:
        asked |= {"configuration": configuration}
    opened = open_hub(HubSource.model_validate(asked))
    splits = list(opened.splits)
    train = _first(_TRAIN, splits)
    if train is None:
        raise DatasetError(
            f"{repository}: found the splits {shorten(splits)}; allowed: one of train"
        )
    train_splits, test = _splits(train, splits)
    if test is None:
        raise DatasetError(
            f"{repository}: found the splits {shorten(splits)}; allowed: one to train on and one to "
            "test on. Save it with such splits, or as a folder of images"
        )
    columns = _types(opened.splits[train])
    label = label_column or _column(
        repository, "--label-column", _of_type(columns, "ClassLabel"), _LABELS, columns
    )
    images = _of_type(columns, "Image")
    rest = [name for name in images or _of_type(columns, "string") if name != label]
    column = input_column or _column(repository, "--input-column", rest, _TEXTS, columns)
    kind = "image" if columns.get(column) == "Image" else "text"
    source = asked | {
        "revision": opened.revision,
        "train_splits": train_splits,
        "test_split": test,
        "input_column": column,
        "label_column": label,
    }
    return _found(kind, source, load_hub(HubSource.model_validate(source), kind))


def look_at_tables(
    train: Path, test: Path, input_column: str | None = None, label_column: str | None = None
) -> FoundDataset:
    """Look at two tables of texts.

    Args:
        train: csv, tsv, jsonl or parquet.
        test: such a file too.
        input_column: of texts; by default ``text``.
        label_column: of labels; by default ``label``.

    Raises:
        DatasetError: a file cannot be read, or lacks a column, a text or a label.
    """
    source: dict[str, Any] = {"kind": "files", "train": str(train), "test": str(test)}
    columns = {"input_column": input_column, "label_column": label_column}
    source |= {key: name for key, name in columns.items() if name is not None}
    return _found("text", source, load_files(FilesSource.model_validate(source)))


def _found(kind: str, source: dict[str, Any], data: LabelledData) -> FoundDataset:
    if kind == "text":
        data = leave_out_unreadable(data)
    return FoundDataset(
        kind=kind,
        source=source,
        classes=data.classes,
        train_counts=np.bincount(data.train.labels, minlength=len(data.classes)).tolist(),
        test_size=len(data.test.labels),
        skipped=len(data.skipped),
    )


def _splits(train: str, found: Sequence[str]) -> tuple[list[str], str | None]:
    """Choose the splits to train and to test on; validation takes the place of a missing one."""
    test, validation = _first(_TEST, found), _first(_VALIDATION, found)
    if test is None:
        return [train], validation
    return [train, validation] if validation else [train], test


def _first(names: Iterable[str], found: Sequence[str]) -> str | None:
    return next((name for name in names if name in found), None)


def _types(split: Any) -> dict[str, str]:
    """The type of every column: Image, ClassLabel, string and so on."""
    return {
        name: getattr(feature, "dtype", "")
        if type(feature).__name__ == "Value"
        else type(feature).__name__
        for name, feature in (split.features or {}).items()
    }


def _of_type(columns: Mapping[str, str], kind: str) -> list[str]:
    return [name for name, each in columns.items() if each == kind]


def _column(
    repository: str,
    option: str,
    candidates: Sequence[str],
    names: Sequence[str],
    columns: Mapping[str, str],
) -> str:
    """The only candidate, or the column that has one of some names."""
    if len(candidates) == 1:
        return candidates[0]
    named = _first(names, candidates or list(columns))
    if named is None:
        raise DatasetError(
            f"{repository}: it is not clear which column is meant; say {option}, one of: "
            f"{shorten(list(columns))}"
        )
    return named
