"""The lower bound from guesses: exact in small cases, valid, and sharp."""

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from dpsweep.privacy.gaussian import gaussian_noise_multiplier
from dpsweep.privacy.guesses import (
    AuditOutcome,
    count_correct,
    epsilon_lower_bound,
    likelihood_scores,
    p_value,
)

Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

THREE_TO_ONE = math.log(3)  # the epsilon for which a guess is right with probability 3/4


def accuracy(epsilon: float) -> float:
    return 1 / (1 + math.exp(-epsilon))


def lower_bounds(canaries: int, guesses: int, correct: Counts, delta: float) -> Floats:
    """Return the bounds of many runs, computed once for each number of right guesses."""
    found, where = np.unique(correct, return_inverse=True)
    bounds = [epsilon_lower_bound(canaries, guesses, int(each), delta) for each in found]
    return np.array(bounds)[where]


# -- small cases by hand -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "epsilon", "delta", "expected"),
    [
        # Without delta the p-value is the binomial tail.
        ((3, 3, 3), THREE_TO_ONE, 0, 27 / 64),
        ((3, 3, 2), THREE_TO_ONE, 0, 54 / 64),
        ((9, 2, 1), THREE_TO_ONE, 0, 15 / 16),
        ((9, 2, 0), THREE_TO_ONE, 0, 1),
        # One guess, right: f(1) = 3/4, f(0) = 1, so the slope is 1/4, and 2 m delta = 1/10.
        ((5, 1, 1), THREE_TO_ONE, 0.01, 3 / 4 + 1 / 40),
        # Two of two: f(2) = 9/16, f(1) = 15/16, f(0) = 1; the slope is max(6/16, 7/32).
        ((5, 2, 2), THREE_TO_ONE, 0.01, 9 / 16 + 6 / 160),
        # At epsilon 0: f(2) = 1/4, f(1) = 3/4, f(0) = 1; max(1/2, 3/8).
        ((5, 2, 2), 0, 0.01, 1 / 4 + 1 / 20),
        # One of two, at high accuracy 0.9: f(1) = 0.99, f(0) = 1.
        ((5, 2, 1), math.log(9), 0.01, 0.99 + 0.001),
        # The steepest slope is not always the first one: three of three at 1/2 have 3/8 against 7/24.
        ((5, 3, 3), 0, 0.01, 1 / 8 + 3 / 80),
    ],
)
def test_p_values_by_hand(
    run: tuple[int, int, int], epsilon: float, delta: float, expected: float
) -> None:
    assert p_value(*run, epsilon, delta) == pytest.approx(expected)


def test_all_guesses_right_in_closed_form() -> None:
    # accuracy^r = 0.05
    for guesses in (5, 40, 500):
        sharp = 0.05 ** (1 / guesses)
        bound = epsilon_lower_bound(1000, guesses, guesses, 0)
        assert bound == pytest.approx(math.log(sharp / (1 - sharp)), rel=1e-6)


def test_results_of_random_guessing_prove_nothing() -> None:
    assert epsilon_lower_bound(1000, 200, 100, 1e-5) == 0
    assert epsilon_lower_bound(1000, 200, 111, 0) == 0  # p-value 0.068 for random guesses
    assert epsilon_lower_bound(1000, 200, 113, 0) > 0  # p-value 0.038


def test_outcomes_are_consistent_or_refuted() -> None:
    stands, refuted = (AuditOutcome(2.0, 1e-5, 1000, 200, correct) for correct in (150, 190))
    assert stands.consistent and 0 < stands.lower_bound < 2 and stands.p_value > 0.05
    assert not refuted.consistent and refuted.lower_bound > 2 and refuted.p_value < 0.05


@given(
    guesses=st.integers(1, 60),
    share=st.floats(0, 1),
    epsilon=st.floats(0, 6),
    delta=st.sampled_from([0.0, 1e-5, 1e-3]),
)
def test_p_values_fall_with_right_guesses_and_grow_with_the_claim(
    guesses: int, share: float, epsilon: float, delta: float
) -> None:
    correct = min(guesses - 1, int(share * guesses))
    here = p_value(100, guesses, correct, epsilon, delta)
    assert p_value(100, guesses, correct + 1, epsilon, delta) <= here + 1e-12
    assert p_value(100, guesses, correct, epsilon + 0.1, delta) >= here - 1e-12
    assert p_value(100, guesses, correct, epsilon, delta + 1e-3) >= here


@given(guesses=st.integers(1, 300), share=st.floats(0.5, 1), delta=st.sampled_from([0.0, 1e-5]))
def test_the_p_value_at_the_bound_is_five_percent(guesses: int, share: float, delta: float) -> None:
    correct = int(share * guesses)
    bound = epsilon_lower_bound(1000, guesses, correct, delta)
    if bound > 0:
        assert p_value(1000, guesses, correct, bound, delta) == pytest.approx(0.05, rel=1e-4)
    else:
        assert p_value(1000, guesses, correct, 0, delta) >= 0.05


# -- simulated mechanisms ------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
def test_bounds_on_randomised_response_hold_in_95_percent_and_are_sharp(epsilon: float) -> None:
    # Each answer is right with probability e^epsilon / (1 + e^epsilon), the largest under epsilon.
    random = np.random.default_rng(1)
    gaps = {}
    for canaries in (100, 3000):
        correct = random.binomial(canaries, accuracy(epsilon), size=1000)
        bounds = lower_bounds(canaries, canaries, correct, 0)
        # At most 50 are expected; 75 has probability 0.0004. The bound is sharp, so about 50 occur.
        assert 15 < np.sum(bounds > epsilon) < 75
        gaps[canaries] = epsilon - float(np.mean(bounds))
    assert gaps[3000] < 0.4 * gaps[100] + 0.01
    assert gaps[3000] < 0.1


def test_bounds_hold_for_a_mechanism_that_publishes_all_coins_with_probability_delta() -> None:
    # With probability delta it publishes all coins, otherwise it is randomised response. Without the
    # delta term the bound would fail in more than 5 % of the runs.
    canaries, epsilon, delta, runs = 12, 1.0, 0.04, 20_000
    random = np.random.default_rng(2)
    correct = random.binomial(canaries, accuracy(epsilon), size=runs)
    correct[random.random(runs) < delta] = canaries
    assert np.mean(lower_bounds(canaries, canaries, correct, delta) > epsilon) < 0.05
    assert np.mean(lower_bounds(canaries, canaries, correct, 0) > epsilon) > 0.055


@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_bounds_on_gaussian_mechanisms_hold_and_are_informative(epsilon: float) -> None:
    delta, canaries, guesses = 1e-5, 1000, 200
    sigma = gaussian_noise_multiplier(epsilon, delta)
    random = np.random.default_rng(3)
    correct = []
    for _ in range(200):
        included = random.random(canaries) < 0.5
        seen = included + sigma * random.standard_normal((1, canaries))
        scores = likelihood_scores(seen, sigma, 1.0)
        correct.append(count_correct(scores, included, guesses))
    bounds = lower_bounds(canaries, guesses, np.array(correct), delta)
    assert np.sum(bounds > epsilon) <= 10
    assert np.mean(bounds) > {1.0: 0.1, 8.0: 2.0}[epsilon]


# -- scores and guesses --------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.01, 0.3, 1.0])
def test_scores_are_log_likelihood_ratios(rate: float) -> None:
    sigma, seen = 0.7, np.random.default_rng(4).normal(size=(5, 3))
    included = (1 - rate) * norm.pdf(seen, 0, sigma) + rate * norm.pdf(seen, 1, sigma)
    expected = np.log(included / norm.pdf(seen, 0, sigma)).sum(axis=0)
    np.testing.assert_allclose(likelihood_scores(seen, sigma, rate), expected, rtol=1e-9)


def test_high_scores_are_guessed_included_and_low_ones_excluded() -> None:
    scores = np.array([5.0, 1.0, 4.0, 0.0, 2.5, 3.0])
    included = np.array([True, True, False, False, True, False])
    assert count_correct(scores, included, 2) == 2  # 5: right, 0: right
    assert count_correct(scores, included, 4) == 2  # 4 and 1 are wrong
    assert count_correct(scores, included, 6) == 2  # and so are 3 and 2.5
    assert count_correct(-scores, included, 2) == 0


def test_guesses_from_noise_are_right_half_of_the_time() -> None:
    random = np.random.default_rng(5)
    included = random.random(20_000) < 0.5
    right = count_correct(random.standard_normal(20_000), included, 10_000)
    assert abs(right - 5000) < 4 * 50


# -- invalid numbers -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((10, 11, 5, 1.0, 0.0), "0 <= right <= guesses <= canaries"),
        ((10, 5, 6, 1.0, 0.0), "6 right of 5 guesses"),
        ((10, 5, -1, 1.0, 0.0), "0 <= right"),
        ((10, 5, 5, -1.0, 0.0), "epsilon >= 0"),
        ((10, 5, 5, math.nan, 0.0), "epsilon >= 0"),
        ((10, 5, 5, 1.0, 1.0), "delta < 1"),
        ((1000, 5, 5, 1.0, 1e-3), "at most 500"),
    ],
)
def test_invalid_numbers_are_refused(
    arguments: tuple[int, int, int, float, float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        p_value(*arguments)


@pytest.mark.parametrize("confidence", [0.0, 1.0, math.nan])
def test_confidence_is_a_probability(confidence: float) -> None:
    with pytest.raises(ValueError, match="confidence"):
        epsilon_lower_bound(10, 5, 5, 0.0, confidence)
