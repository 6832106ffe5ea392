"""The section `features`."""

from pathlib import Path
from typing import Any

import pytest
from tests.study.small import load_small

from dpsweep.study.cells import FeatureSource

HEAD = {
    "methods/head": {"kind": "head"},
    "sweeps/flat/method": "head",
    "sweeps/automatic/method": "head",
}


@pytest.mark.parametrize(
    "features", [{}, {"layer": "blocks.5", "transformation": "layer-norm"}, {"pooling": "mean"}]
)
def test_a_head_trains_on_features(tmp_path: Path, features: dict[str, Any]) -> None:
    study = load_small(tmp_path, HEAD | {"backbones/pretrained/features": features})
    assert all(study.features(problem) is not None for problem in study.problems)
    assert study.feature_sources() == [FeatureSource("digits", "pretrained")]
