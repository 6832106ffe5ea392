import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpsweep.data import DatasetError, PreparedDataset, Split
from dpsweep.data.examples import LabelledData, Labels
from dpsweep.data.prepare import _compare, prepare
from dpsweep.study.config import Dataset

DIGITS: dict[str, Any] = {
    "title": "Digits",
    "source": {"kind": "sklearn-digits"},
    "image_size": 8,
    "classes": 10,
    "train_size": 1347,
    "test_size": 450,
}
GLYPHS: dict[str, Any] = {
    "title": "Glyphs",
    "source": {"kind": "glyphs", "characters": "0aB", "train_per_class": 4, "test_per_class": 2},
    "image_size": 8,
    "classes": 3,
    "train_size": 12,
    "test_size": 6,
}


@pytest.mark.parametrize(
    ("section", "classes"), [(DIGITS, list("0123456789")), (GLYPHS, ["0", "a", "B"])]
)
def test_a_dataset_is_prepared_as_declared(
    tmp_path: Path, section: dict[str, Any], classes: list[str]
) -> None:
    prepare("toys", Dataset(**section), tmp_path)
    metadata = PreparedDataset.open(tmp_path).metadata
    assert list(metadata.classes) == classes
    assert metadata.name == "toys"
    assert metadata.title == section["title"]
    assert metadata.train_size == section["train_size"]
    assert metadata.shape == (8, 8, 1)


@pytest.mark.parametrize("key", ["classes", "train_size", "test_size"])
def test_what_differs_from_the_declaration_is_refused(tmp_path: Path, key: str) -> None:
    wrong = GLYPHS | {key: GLYPHS[key] + 1}
    message = rf"datasets\.toys\.{key}: the study says {wrong[key]}, {GLYPHS[key]} found"
    with pytest.raises(DatasetError, match=message):
        prepare("toys", Dataset(**wrong), tmp_path)
    with pytest.raises(DatasetError, match="not a prepared dataset"):
        PreparedDataset.open(tmp_path)


def test_digits_have_one_size(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="found 16, allowed: 8"):
        prepare("toys", Dataset(**(DIGITS | {"image_size": 16})), tmp_path)


def test_importing_the_layer_imports_no_heavy_library() -> None:
    code = (
        "import sys, dpsweep.data, dpsweep.data.prepare, dpsweep.models, dpsweep.models.backbone\n"
        "heavy = {'torch', 'timm', 'datasets', 'sklearn', 'scipy', 'matplotlib', 'transformers'}\n"
        "print(*heavy & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_examples_without_a_label_are_refused_by_number() -> None:
    labels, good = np.array([0, 1, -1]), np.array([0, 1, 1])

    def data(train: Labels, test: Labels) -> LabelledData:
        return LabelledData(Split(None, train), Split(None, test), ["a", "b"], "here")

    dataset = Dataset.model_validate(
        {"title": "Own", "classes": 2, "train_size": 3, "test_size": 3, "image_size": 4}
        | {"source": {"kind": "folder", "path": "own"}}
    )
    with pytest.raises(DatasetError, match="training labels from -1 to 1 found"):
        _compare("own", dataset, data(labels, good))
    with pytest.raises(DatasetError, match="test labels from -1 to 1 found"):
        _compare("own", dataset, data(good, labels))
