"""The order of the tests, and what examples of Hypothesis may take."""

import pytest
from hypothesis import HealthCheck, settings

# A slow machine is no failure.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

# A worker that begins these last leaves the others with nothing to do.
LONGEST = (
    *("test_your_own_data.py", "test_chain.py", "test_suggested_commands.py"),
    *("test_text_transfer.py", "test_transfer.py", "test_interruption.py", "test_gpu_kit.py"),
    *("test_release_rule.py", "test_calling.py"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files that take longest first; all others stay in their order."""
    order = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.name, len(LONGEST)))
