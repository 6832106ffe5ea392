"""The cluster of a module's tests."""

from collections.abc import Iterator

import pytest
from tests.slurm import cluster


@pytest.fixture(scope="module")
def slurm() -> Iterator[None]:
    """Start a fresh cluster."""
    if reason := cluster.missing():
        pytest.skip(reason)
    with cluster.running():
        yield
