"""The smallest study, completed once, and copies of it."""

import copy
import re
import shutil
from pathlib import Path

import pytest
from tests.workflow.chain import STUDY, Chain


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
