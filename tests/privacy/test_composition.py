"""The epsilon of several releases together."""

import pytest

from dpsweep.privacy import accountants
from dpsweep.privacy.accountants import composed_epsilon, pld_epsilon, pld_interval
from dpsweep.privacy.calibration import calibrate
from dpsweep.privacy.gaussian import gaussian_epsilon

DELTA = 1e-5


@pytest.mark.parametrize("count", [1, 2, 5])
def test_trainings_on_the_full_batch_are_one_longer_training(count):
    noise = calibrate(8.0, DELTA, 1000, 1000, 10)
    found = composed_epsilon([noise] * count, [], count * DELTA)
    exact = gaussian_epsilon(count * DELTA, noise.noise_multiplier, 10 * count)
    assert exact <= found <= 1.001 * exact
    assert found <= (8.0 if count == 1 else 0.8 * 8.0 * count)


def test_two_different_trainings_lie_between_two_equal_ones():
    few, many = (calibrate(8.0, DELTA, 1000, 100, steps) for steps in (10, 40))
    both = composed_epsilon([few, many], [], DELTA)

    def twice(noise: object) -> float:
        return composed_epsilon([noise, noise], [], DELTA)  # type: ignore[list-item]

    assert min(twice(few), twice(many)) * 0.999 <= both <= max(twice(few), twice(many)) * 1.001
    once = pld_epsilon(
        few.noise_multiplier, few.sampling_rate, 20, DELTA, pld_interval(8.0, few.steps)
    )
    assert twice(few) == pytest.approx(once, rel=1e-3)


def test_the_joint_epsilon_is_that_of_delta_less_the_allowance(monkeypatch):
    noise = calibrate(8.0, DELTA, 1000, 100, 10)
    of_half = composed_epsilon([noise, noise], [], DELTA / 2)
    monkeypatch.setattr(accountants, "rounding_allowance", lambda steps: steps / 40 * DELTA)
    assert composed_epsilon([noise, noise], [], DELTA) == pytest.approx(of_half, rel=1e-6)


def test_epsilons_of_unknown_mechanisms_add_up():
    """As in docs/release.md: for large epsilons and the sum of the deltas, hardly less than the sum holds."""
    assert composed_epsilon([], [(8.0, DELTA)] * 5, 5 * DELTA) == pytest.approx(40)
    noise = calibrate(8.0, DELTA, 1000, 1000, 10)
    mixed = composed_epsilon([noise] * 3, [(8.0, DELTA)] * 2, 5 * DELTA)
    fixed = composed_epsilon([noise] * 3, [], 3 * DELTA)
    assert fixed < mixed <= fixed + 16.1
    # Small epsilons compose better if the joint delta exceeds the sum.
    assert composed_epsilon([], [(0.1, 0.0)] * 50, DELTA) < 0.8 * 5
