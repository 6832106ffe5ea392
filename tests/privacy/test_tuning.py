"""Accounted tuning: check values, and exact values of small mechanisms."""

import math

import numpy as np
import pytest

from dpsweep.privacy import CalibrationError
from dpsweep.privacy.gaussian import gaussian_delta, gaussian_noise_multiplier
from dpsweep.privacy.tuning import (
    Profile,
    draw_trial_count,
    total_epsilon,
    trial_count_probabilities,
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

    def profile(epsilon: float) -> float:
        return hockey_stick(first, second, epsilon)

    ours = selection(first, mean, shape), selection(second, mean, shape)
    for delta in (1e-1, 1e-2, 1e-3):
        try:
            epsilon = total_epsilon(profile, delta, mean, shape)
        except CalibrationError:
            continue
        assert hockey_stick(*ours, epsilon) <= delta * (1 + 1e-9)


@pytest.mark.parametrize(
    ("delta", "mean", "shape", "message"),
    [
        (1e-5, 1.0, 0, "mean number of trials"),
        (1e-5, 5, -1.0, "shape"),
        (1e-5, 5, -0.999, "shape -0.999: found no distribution with a mean of 5 trials"),
        (1e-5, 1.5, 1e12, r"shape 1e\+12: found no distribution with a mean of 1.5 trials"),
        (1e-5, "5", 0, "mean = '5': it must be a number"),
        (1e-5, 5, None, "shape = None: it must be a number"),
    ],
)
def test_invalid_numbers_are_refused(delta, mean, shape, message):
    with pytest.raises(CalibrationError, match=message):
        total_epsilon(gaussian(1), delta, mean, shape)
