"""Fixtures with prepared data and with releases that several test files read and forge."""

import shutil
from pathlib import Path

import pytest
from tests.release.releases import FIXED, PRIVATE, SUBSAMPLED, release, study
from tests.training.tiny_study import prepare

from dpsweep.study.paths import Paths


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    prepare(study(FIXED), folder)
    return folder


@pytest.fixture
def paths(prepared: Path, tmp_path: Path) -> Paths:
    """Return a new folder of results for every test."""
    return Paths(Path(shutil.copytree(prepared, tmp_path / "results")))


@pytest.fixture(scope="session")
def results(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make three releases of the same data one after the other: the folders first, tuned, fixed."""
    results = Path(shutil.copytree(prepared, tmp_path_factory.mktemp("releases") / "results"))
    for name, section in (("first", FIXED), ("tuned", PRIVATE), ("fixed", SUBSAMPLED)):
        release(section, Paths(results)).rename(results / name)
    return results


@pytest.fixture
def folder(results: Path, tmp_path: Path) -> Path:
    """Return a copy of the first release in a place without its ledger."""
    return Path(shutil.copytree(results / "first", tmp_path / "copies" / "release"))


@pytest.fixture
def tuned(results: Path) -> Path:
    return results / "tuned"
