import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dpsweep.config import Dataset
from dpsweep.data import DatasetError, PreparedDataset
from dpsweep.data.prepare import prepare

SOURCE = {"kind": "glyphs", "characters": "0aB", "train_per_class": 4, "test_per_class": 2}
GLYPHS: dict[str, Any] = {
    **{"title": "Glyphs", "source": SOURCE, "image_size": 8},
    **{"classes": 3, "train_size": 12, "test_size": 6},
}


def test_a_dataset_is_prepared_as_declared_or_refused(tmp_path: Path) -> None:
    for key in ("classes", "train_size", "test_size"):
        wrong = GLYPHS | {key: GLYPHS[key] + 1}
        message = rf"datasets\.toys\.{key}: the study says {wrong[key]}, {GLYPHS[key]} found"
        with pytest.raises(DatasetError, match=message):
            prepare("toys", Dataset(**wrong), tmp_path)
        with pytest.raises(DatasetError, match="not a prepared dataset"):
            PreparedDataset.open(tmp_path)
    prepare("toys", Dataset(**GLYPHS), tmp_path)
    metadata = PreparedDataset.open(tmp_path).metadata
    assert (metadata.name, metadata.title, metadata.classes) == ("toys", "Glyphs", ("0", "a", "B"))
    assert (metadata.train_size, metadata.shape) == (12, (8, 8, 1))


def test_importing_the_layer_imports_no_heavy_library() -> None:
    code = (
        "import sys, dpsweep.data, dpsweep.data.prepare, dpsweep.models, dpsweep.models.backbone\n"
        "heavy = {'torch', 'timm', 'datasets', 'sklearn', 'scipy', 'matplotlib', 'transformers'}\n"
        "print(*heavy & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
