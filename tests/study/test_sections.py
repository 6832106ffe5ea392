"""The sections `audit` and `features`: their cells and problems."""

from pathlib import Path
from typing import Any

import pytest
from tests.study.small import load_small

from dpsweep.study.cells import FeatureSource

AUDIT = {
    **{"sweep": "flat", "epsilon": [1, 8], "epochs": 4, "batch_size": [256, "full"]},
    **{"clipping_bound": 1, "learning_rate": 0.01},
}


def test_audited_settings_are_ordered_by_batch_size(tmp_path: Path) -> None:
    study = load_small(tmp_path, {"audit": AUDIT})
    assert [cell.name for cell in study.audit_cells()] == [
        *("eps1_epochs4_B256_C1", "eps8_epochs4_B256_C1"),
        *("eps1_epochs4_Bfull_C1", "eps8_epochs4_Bfull_C1"),
    ]
    # A batch may be larger than the real training set: 1347 digits and 1000 canaries.
    study = load_small(tmp_path, {"audit": AUDIT | {"batch_size": [2346]}})
    assert study.audit_cells()[0].batch_size == 2346
    assert load_small(tmp_path, {}).audit_cells() == []


# -- features ---------------------------------------------------------------------------------

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
