"""Accounted tuning: check values, exact values of small mechanisms, and noise that is minimal."""

import math
from dataclasses import replace

import numpy as np
import pytest

from dpsweep.privacy import CalibrationError, Sampling
from dpsweep.privacy.accountants import (
    gaussian_delta,
    gaussian_noise_multiplier,
    rounding_allowance,
)
from dpsweep.privacy.calibration import calibrate
from dpsweep.privacy.tuning import (
    SLACK,
    Profile,
    TuningNoise,
    calibrate_tuning,
    certify_tuning_again,
    draw_trial_count,
    gamma_of_mean,
    total_epsilon,
    training_profile,
    trial_count_probabilities,
    trial_profile,
)

SETTINGS = [(-0.5, 10), (0, 5), (0, 10), (0, 30), (1, 10), (1, 30)]
CHECK_VALUES = {
    0.5: [0.73, 0.70, 0.77, 0.88, 0.83, 0.98],
    1: [1.43, 1.38, 1.51, 1.70, 1.63, 1.90],
    2: [2.79, 2.70, 2.95, 3.30, 3.16, 3.67],
    4: [5.43, 5.26, 5.71, 6.34, 6.08, 7.01],
    8: [10.44, 10.14, 10.90, 12.00, 11.53, 13.12],
}


def gaussian(epsilon: float) -> Profile:
    sigma = gaussian_noise_multiplier(epsilon, 1e-5)
    return lambda each: gaussian_delta(each, sigma)


@pytest.mark.parametrize("epsilon", CHECK_VALUES)
def test_check_values(epsilon):
    found = [total_epsilon(gaussian(epsilon), 1e-5, mean, shape) for shape, mean in SETTINGS]
    np.testing.assert_allclose(found, CHECK_VALUES[epsilon], atol=0.01)


@pytest.mark.parametrize(("shape", "mean"), [*SETTINGS, (-0.7, 2), (3, 1.5), (0.001, 10)])
def test_distribution_of_the_number_of_trials(shape, mean):
    probabilities = trial_count_probabilities(mean, shape, 200_000)
    assert (probabilities > 0).all() or probabilities[-1] == 0
    assert probabilities.sum() == pytest.approx(1, rel=1e-6)
    assert (np.arange(1, 200_001) * probabilities).sum() == pytest.approx(mean, rel=1e-6)


def test_drawn_numbers_follow_their_distribution():
    random = np.random.default_rng(0)
    drawn = np.bincount([draw_trial_count(4, 0, random) for _ in range(20_000)], minlength=60)
    expected = 20_000 * trial_count_probabilities(4, 0, 8)
    assert (np.abs(drawn[1:9] - expected) < 5 * np.sqrt(expected)).all()
    assert drawn[0] == 0


def selection(base: np.ndarray, mean: float, shape: float) -> np.ndarray:
    """Return the exact distribution of the best of K outcomes; a higher index is a higher score."""
    below = np.concatenate([[0], np.cumsum(base)])
    counts = trial_count_probabilities(mean, shape, 20_000)
    generating = np.array([(counts * x ** np.arange(1, len(counts) + 1)).sum() for x in below])
    return np.diff(generating)


def hockey_stick(first: np.ndarray, second: np.ndarray, epsilon: float) -> float:
    forth = np.maximum(first - math.exp(epsilon) * second, 0).sum()
    back = np.maximum(second - math.exp(epsilon) * first, 0).sum()
    return float(max(forth, back))


@pytest.mark.parametrize("seed", range(25))
def test_never_below_the_exact_value_of_small_mechanisms(seed):
    random = np.random.default_rng(seed)
    shape, mean = random.choice([-0.7, -0.5, 0, 0.5, 1, 2]), random.uniform(1.2, 12)
    size = random.integers(2, 7)
    concentration = 10 ** random.uniform(-1, 1)
    first, second = random.dirichlet(np.full(size, concentration), 2)
    # Mix the two so that the profile falls below delta.
    share = random.uniform(0.05, 0.9)
    second = share * first + (1 - share) * second

    def profile(epsilon):
        return hockey_stick(first, second, epsilon)

    ours = selection(first, mean, shape), selection(second, mean, shape)
    for delta in (1e-1, 1e-2, 1e-3):
        try:
            epsilon = total_epsilon(profile, delta, mean, shape)
        except CalibrationError:
            continue
        assert hockey_stick(*ours, epsilon) <= delta * (1 + 1e-9)


DELTA = 1e-5


def total(noise: TuningNoise) -> float:
    """Return the total epsilon of the mechanism, by the bound itself."""
    return total_epsilon(trial_profile(noise), noise.delta, noise.mean_trials, noise.shape)


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
        (1.0, DELTA, "5", 1, "mean = '5': it must be a number"),
        (1.0, DELTA, 3, -1.0, "shape -1.0; allowed: a mean above 1 and a shape above -1"),
        (1.0, DELTA, 5, -0.999, "shape -0.999: found no distribution with a mean of 5 trials"),
        (1.0, DELTA, 1.5, 1e12, r"shape 1e\+12: found no distribution with a mean of 1.5 trials"),
        (1.0, DELTA, 5, None, "shape = None: it must be a number"),
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
