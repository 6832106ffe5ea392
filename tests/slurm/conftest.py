"""The cluster of a module's tests."""

from collections.abc import Iterator

import pytest
from tests.slurm import cluster


@pytest.fixture(scope="module")
def slurm(request: pytest.FixtureRequest) -> Iterator[None]:
    """Start a fresh cluster; with accounting if the module has ``ACCOUNTING = True``."""
    if reason := cluster.missing():
        pytest.skip(reason)
    with cluster.running(getattr(request.module, "ACCOUNTING", False)):
        yield
