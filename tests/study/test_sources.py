"""No example is read twice, and none is both trained and tested on."""

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from dpsweep.study.config import FilesSource, FolderSource, HubSource

READ: TypeAdapter[HubSource | FolderSource | FilesSource] = TypeAdapter(
    HubSource | FolderSource | FilesSource
)
HUB = {"kind": "hub", "id": "owner/name"}
FOLDER = {"kind": "folder", "path": "images"}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (HUB | {"train_splits": ["train", "train"]}, "train_splits: found train twice"),
        (HUB | {"train_splits": ["train", "test"]}, "test_split: found test"),
        (FOLDER | {"train_folders": ["a", "b", "a"]}, "train_folders: found a twice"),
        (FOLDER | {"train_folders": ["train", "test"]}, "test_folder: found test"),
        (FOLDER | {"train_folders": ["."]}, "train_folders: found . with the test_folder test"),
        ({"kind": "files", "train": "a.csv", "test": "./a.csv"}, "test: found ./a.csv"),
    ],
)
def test_what_is_read_twice_is_refused(source: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        READ.validate_python(source)


@pytest.mark.parametrize(
    "source",
    [
        HUB | {"train_splits": ["train", "validation"]},
        FOLDER | {"train_folders": ["test"], "test_from_train": 0.2},
        {"kind": "files", "train": "a.csv", "test": "b.csv"},
    ],
)
def test_what_is_read_once_is_accepted(source: dict[str, Any]) -> None:
    READ.validate_python(source)
