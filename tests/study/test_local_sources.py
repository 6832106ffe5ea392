"""Local files that a study names are a part of what its outputs depend on."""

import os
from pathlib import Path
from typing import Any

import pytest

from dpsweep.study.config import Dataset
from dpsweep.study.fingerprints import source_fingerprint


def section(source: dict[str, Any], **keys: Any) -> Dataset:
    sizes = {"title": "Own", "classes": 2, "train_size": 10, "test_size": 2}
    return Dataset.model_validate(sizes | {"source": source} | keys)


@pytest.mark.parametrize("kind", ["folder", "hub", "files"])
def test_a_changed_or_new_file_changes_the_fingerprint(tmp_path: Path, kind: str) -> None:
    inside = tmp_path / "data" / "train" / "a.csv"
    inside.parent.mkdir(parents=True)
    inside.write_text("one")
    dataset = {
        "folder": section({"kind": "folder", "path": str(tmp_path / "data")}, image_size=4),
        "hub": section({"kind": "hub", "id": "a/b", "path": str(tmp_path / "data")}, image_size=4),
        "files": section(
            {"kind": "files", "train": str(inside), "test": str(tmp_path / "data/test.csv")}
        ),
    }[kind]
    found = [source_fingerprint(dataset)]
    assert found[0] == source_fingerprint(dataset)
    os.utime(inside, (1, 1))
    found.append(source_fingerprint(dataset))
    (tmp_path / "data" / "test.csv").write_text("two")
    found.append(source_fingerprint(dataset))
    inside.unlink()
    found.append(source_fingerprint(dataset))
    assert len(set(found)) == 4
