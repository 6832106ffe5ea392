"""The order of the tests."""

import pytest

# A worker that begins these last leaves the others with nothing to do.
LONGEST = (
    "test_your_own_data.py",
    "test_gpu_kit.py",
    "test_text_transfer.py",
    "test_calling.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files that take longest first; all others stay in their order."""
    items.sort(key=lambda item: item.path.name not in LONGEST)
