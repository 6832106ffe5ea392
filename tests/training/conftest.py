"""What the tests of the trainer share."""

import pytest
from tests.training.tiny_study import Prepared, prepare, tiny_study


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """The tiny study with its dataset and its network; nothing else is to be written beside them."""
    return prepare(tiny_study({}, {"kind": "film"}), tmp_path_factory.mktemp("tiny"))
