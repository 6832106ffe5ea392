"""Releases that several files of tests forge."""

from pathlib import Path

import pytest
from tests.release.test_release import FIXED, PRIVATE, release, study
from tests.training.tiny_study import prepare

from dpsweep.study.paths import Paths

SUBSAMPLED = FIXED | {"epsilon": 2.0, "batch_size": [64], "epochs": [1]}


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three releases of the same data, one after the other: the folders first, tuned, fixed."""
    results = tmp_path_factory.mktemp("forgeries") / "results"
    prepare(study(FIXED), results)
    paths = Paths(results)
    for name, section in (("first", FIXED), ("tuned", PRIVATE), ("fixed", SUBSAMPLED)):
        release(section, paths).rename(results / name)
    return results
