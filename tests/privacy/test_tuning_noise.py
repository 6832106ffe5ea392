"""The noise of accounted tuning gives the target total epsilon, and is minimal."""

import math
from dataclasses import replace

import pytest

from dpsweep.privacy import CalibrationError, Sampling
from dpsweep.privacy.accountants import rounding_allowance
from dpsweep.privacy.calibration import calibrate
from dpsweep.privacy.gaussian import gaussian_delta
from dpsweep.privacy.tuning import (
    SLACK,
    TuningNoise,
    calibrate_tuning,
    certify_tuning_again,
    gamma_of_mean,
    largest_profile,
    total_epsilon,
    training_profile,
)

DELTA = 1e-5


def total(noise: TuningNoise) -> float:
    """Return the total epsilon of the mechanism, by the bound itself."""
    score = noise.score_noise
    profiles = [*map(training_profile, noise.noise), lambda epsilon: gaussian_delta(epsilon, score)]
    return total_epsilon(largest_profile(profiles), noise.delta, noise.mean_trials, noise.shape)


@pytest.mark.parametrize("epsilon", [0.1, 1, 8])
@pytest.mark.parametrize(("mean", "shape"), [(3, 1), (10, 0), (5, -0.5)])
def test_the_total_is_met_and_used_up(epsilon, mean, shape):
    noise = calibrate_tuning(
        epsilon, DELTA, mean, shape, [Sampling(900, 900, 4), Sampling(900, 900, 32)]
    )
    assert total(noise) <= noise.total_epsilon <= epsilon
    assert total(noise) > (1 - 2 * SLACK) * epsilon
    # The full batch is one Gaussian mechanism for any number of steps.
    four, many = (each.noise_multiplier / math.sqrt(each.steps) for each in noise.noise)
    assert four == pytest.approx(many, rel=1e-6)


def test_candidates_of_several_batch_sizes():
    full = Sampling(900, 900, 4)
    noise = calibrate_tuning(2, DELTA, 3, 1, [full, Sampling(900, 100, 18), full])
    assert len(noise.noise) == 2
    assert (1 - 2 * SLACK) * 2 < total(noise) <= 2
    assert noise.calibration(Sampling(900, 100, 18)).sampling_rate == pytest.approx(1 / 9)


@pytest.mark.parametrize("mean", [1.001, pytest.param(1.5, marks=pytest.mark.slow)])
def test_a_small_mean_number_of_trials(mean):
    """The second condition then has a small epsilon at a large delta."""
    noise = calibrate_tuning(8, DELTA, mean, 1, [Sampling(1212, 16, 758)])
    assert total(noise) <= noise.total_epsilon <= 8
    assert total(noise) > (1 - 2 * SLACK) * 8


@pytest.mark.parametrize("batch_size", [100, 900])
def test_a_smaller_second_epsilon_than_the_noise_has_is_refused(batch_size):
    noise = calibrate_tuning(2, DELTA, 3, 1, [Sampling(900, batch_size, 8)])
    gamma = gamma_of_mean(3, 1)
    large = gamma * math.expm1(noise.second_epsilon) / (1 - gamma)
    assert noise.second_delta == pytest.approx(large)
    assert training_profile(noise.noise[0])(noise.second_epsilon) <= large
    with pytest.raises(CalibrationError, match="second_delta: found"):
        certify_tuning_again(replace(noise, second_epsilon=0.999 * noise.second_epsilon))


@pytest.mark.parametrize(
    ("epsilon", "delta", "mean", "shape", "message"),
    [
        (math.inf, DELTA, 3, 1, "an epsilon above 0 and at most 10000"),
        (0.0, DELTA, 3, 1, "an epsilon above 0 and at most 10000"),
        (1.0, 1.0, 3, 1, "a delta above 0 and below 1"),
        ("1", DELTA, 3, 1, "epsilon = '1': it must be a number"),
        (1.0, DELTA, 1.0, 1, "mean number of trials 1"),
        (1.0, DELTA, 3, -1.0, "shape -1.0; allowed: a mean above 1 and a shape above -1"),
        (1e-9, DELTA, 3, 1, "no base mechanism gives a total epsilon of 1e-09"),
    ],
)
def test_unreachable_targets_are_refused(epsilon, delta, mean, shape, message):
    with pytest.raises(CalibrationError, match=message):
        calibrate_tuning(epsilon, delta, mean, shape, [Sampling(900, 900, 4)])


def test_the_profile_of_training_leaves_delta_for_rounding():
    """Far above epsilon nothing else is left of delta."""
    noise = calibrate(2.0, 1e-5, 1000, 100, 10)
    assert training_profile(noise)(60.0) >= rounding_allowance(10)
