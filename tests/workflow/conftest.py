"""The smallest study, completed once, and copies of it; an installed wheel."""

import copy
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.waiting import called
from tests.workflow.chain import ROOT, STUDY, Chain


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    """Return the study, completed once."""
    chain = Chain(tmp_path_factory.mktemp("finished"), STUDY)
    said = chain.run()
    assert re.search(r"\d+ of \d+ jobs \(100%\), .* spent", said)
    return chain


@pytest.fixture
def chain(finished: Chain, tmp_path: Path) -> Chain:
    """Return a copy of the finished study, which a test may change."""
    folder = tmp_path / "copy"
    shutil.copytree(finished.folder, folder)
    return Chain(folder, copy.deepcopy(STUDY))


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return an environment in which the package is installed from a wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    for words in (
        ["hatchling", "build", "-t", "wheel", "-d", str(folder)],
        ["pip", "install", "--no-deps", "--no-index", "--target", str(folder / "site")],
    ):
        wheels = [str(file) for file in folder.glob("*.whl")]
        call = [sys.executable, "-m", *words, *(wheels if "pip" in words else [])]
        subprocess.run(call, cwd=ROOT, check=True, capture_output=True)
    environment = {name: text for name, text in os.environ.items() if "DPSWEEP" not in name}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(folder / "site"), *filter(None, [environment.get("PYTHONPATH")])]
    )
    place = [sys.executable, "-c", "import dpsweep; print(dpsweep.__file__)"]
    assert called(place, folder, environment).stdout.startswith(str(folder / "site"))
    return environment
