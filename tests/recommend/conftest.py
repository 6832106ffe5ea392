"""A cache of calibrated noise, because many tests use the same settings."""

from functools import cache

import pytest

from dpsweep.recommend import rule, text

KEPT = [
    (module, name, cache(getattr(module, name)))
    for module, name in (
        (rule, "noise_multiplier"),
        (text, "calibrate"),
        (text, "attacks_on_training"),
    )
]


@pytest.fixture(autouse=True)
def noise_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, kept in KEPT:
        monkeypatch.setattr(module, name, kept)
