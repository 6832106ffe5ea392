"""Cheap noise and attacks, because many tests use the same settings."""

from functools import cache

import pytest

from dpsweep.privacy import Calibration
from dpsweep.privacy.trade_off import GROUPS, Attack, GaussianTradeOff, best_attack
from dpsweep.recommend import rule, text

NOISE_MULTIPLIER, CALIBRATE = cache(rule.noise_multiplier), cache(text.calibrate)


def attacks(noise: Calibration) -> list[Attack]:
    """Return attacks on Gaussian noise that depend on all settings, in no time."""
    mean = noise.sampling_rate * noise.steps**0.5 / noise.noise_multiplier
    return [best_attack(GaussianTradeOff(each * mean), each) for each in GROUPS]


@pytest.fixture(autouse=True)
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule, "noise_multiplier", NOISE_MULTIPLIER)
    monkeypatch.setattr(text, "calibrate", CALIBRATE)
    monkeypatch.setattr(text, "attacks_on_training", attacks)
