"""The smallest study, run to its end once, and copies of it."""

import copy
import re
import shutil
from pathlib import Path

import pytest
from tests.workflow.chain import STUDY, Chain


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    """The study, run to its end once."""
    chain = Chain(tmp_path_factory.mktemp("finished"), STUDY)
    said = chain.run()
    assert re.search(r"\d+ of \d+ jobs \(100%\), .* spent", said)
    return chain


@pytest.fixture
def chain(finished: Chain, tmp_path: Path) -> Chain:
    """A copy of the finished study that a test may change."""
    folder = tmp_path / "copy"
    shutil.copytree(finished.folder, folder)
    return Chain(folder, copy.deepcopy(STUDY))
