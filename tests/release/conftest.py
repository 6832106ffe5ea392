"""Fixtures with prepared data and with releases that several test files read and forge."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.release.releases import FIXED, PRIVATE, SUBSAMPLED, release, study
from tests.training.tiny_study import prepare

from dpsweep.base.files import canonical_json
from dpsweep.release import files, verify
from dpsweep.release.certificate import Certificate
from dpsweep.study.paths import Paths

outlines: dict[Any, Any] = {}
proofs: dict[Any, Any] = {}


@pytest.fixture(autouse=True)
def slow_results_are_kept(monkeypatch):
    """Cache outlines of networks and proofs of accountants, because many forgeries have the same ones."""
    outline, prove = files.outline, verify._proven

    def kept_outline(architecture, method, classes, features=None):
        key = architecture.model_dump_json(), method.model_dump_json(), classes, str(features)
        if key not in outlines:
            outlines[key] = outline(architecture, method, classes, features)
        return outlines[key]

    def kept_proof(certificate: Certificate) -> Any:
        # What is proven is among them: a mistake could take it from the certificate.
        names = ("epsilon", "delta", "noise", "tuning", "certified_epsilon", "pld_epsilon")
        read: dict[str, Any] = dict.fromkeys(names, True)
        given = certificate.model_dump(mode="json", include=read | {"releases": {"earlier"}})
        key = canonical_json(given)
        if key not in proofs:
            proofs[key] = prove(certificate)
        return proofs[key]

    monkeypatch.setattr(files, "outline", kept_outline)
    monkeypatch.setattr(verify, "_proven", kept_proof)


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared")
    prepare(study(FIXED), folder)
    return folder


@pytest.fixture
def paths(prepared, tmp_path):
    """Return a new folder of results for every test."""
    return Paths(Path(shutil.copytree(prepared, tmp_path / "results")))


@pytest.fixture(scope="session")
def results(prepared, tmp_path_factory):
    """Make three releases of the same data one after the other: the folders first, tuned, fixed."""
    results = Path(shutil.copytree(prepared, tmp_path_factory.mktemp("releases") / "results"))
    for name, section in (("first", FIXED), ("tuned", PRIVATE), ("fixed", SUBSAMPLED)):
        release(section, Paths(results)).rename(results / name)
    return results


@pytest.fixture
def folder(results, tmp_path):
    """Return a copy of the first release in a place without its ledger."""
    return Path(shutil.copytree(results / "first", tmp_path / "copies" / "release"))
