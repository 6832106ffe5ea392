"""The two measures of an audit, by the trade-off curve and by the noise itself: valid, and sharp enough."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from scipy.stats import norm

from dpsweep.privacy import Calibration
from dpsweep.privacy.audit import (
    LEAST_SHARE,
    CurveOutcome,
    MeasuredNoise,
    curve_p_value,
    fewest_that_refute,
    likelihood_scores,
    plan_audit,
    refuted,
    simulated_right_guesses,
)
from dpsweep.privacy.calibration import calibrate
from dpsweep.privacy.trade_off import GaussianTradeOff

M = 1000


def full_batch(epsilon: float) -> Calibration:
    return calibrate(epsilon, 1e-5, 2347, 2347, 8)


SAMPLED = calibrate(4.0, 1e-5, 2347, 500, 10)


# -- the recursion ---------------------------------------------------------------------------


def as_in_the_paper(mu: float, canaries: int, guesses: int, correct: int, level: float) -> bool:
    """Run the paper's algorithm, with its arrays r and h, for k = 2."""
    r, h = np.zeros(correct + 1), np.zeros(correct + 1)
    r[correct] = level * correct / canaries
    h[correct] = level * (guesses - correct) / canaries
    for i in range(correct, 0, -1):
        h[i - 1] = max(h[i], ndtr(ndtri(min(r[i], 1.0)) - mu))
        r[i - 1] = r[i] + (i - 1) / (guesses - i + 1) * (h[i - 1] - h[i])
    return bool(r[0] + h[0] > guesses / canaries)


@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("guesses", [1, 20, 200])
def test_refutation_is_the_recursion_of_the_paper(mu, guesses):
    def curve(rate):
        return float(ndtr(ndtri(rate) - mu))

    for correct in range(guesses + 1):
        for level in (0.05, 0.2):
            expected = as_in_the_paper(mu, M, guesses, correct, level)
            assert refuted(curve, M, guesses, correct, level) == expected


def test_more_right_guesses_refute_more():
    curve = GaussianTradeOff(1.0).false_positive_rate
    found = [curve_p_value(curve, M, 100, each) for each in range(50, 101, 5)]
    assert np.all(np.diff(found) <= 1e-9) and found[0] > 0.99 and found[-1] < 0.01
    fewest = fewest_that_refute(curve, M, 100)
    assert [refuted(curve, M, 100, each) for each in (fewest - 1, fewest)] == [False, True]
    assert curve_p_value(curve, M, 100, fewest) < 0.05 < curve_p_value(curve, M, 100, fewest - 1)
    assert fewest_that_refute(GaussianTradeOff(9.0).false_positive_rate, M, 20) == 21


# -- simulated mechanisms ----------------------------------------------------------------------


def test_the_bound_exceeds_epsilon_in_at_most_five_percent():
    noise = full_batch(4.0)
    right = simulated_right_guesses(noise, 1.0, M, [100], np.random.default_rng(5), runs=10_000)
    counts, times = np.unique(right, return_counts=True)
    bounds = [CurveOutcome(noise, M, 100, int(count)).lower_bound for count in counts]
    assert np.sum(times[np.array(bounds) > 4.0]) < 500
    assert 2.0 < float(np.median(np.repeat(bounds, times))) < 2.5


# -- the bound on the noise --------------------------------------------------------------------


@pytest.mark.parametrize("noise", [full_batch(2.0), SAMPLED])
def test_claims_above_the_bound_on_the_noise_are_refuted(noise):
    found = CurveOutcome(noise, M, 100, 92)
    most = found.noise_at_most
    assert LEAST_SHARE * noise.noise_multiplier < most < 4 * noise.noise_multiplier
    for factor, consistent in ((0.99, True), (1.01, False)):
        claim = replace(noise, noise_multiplier=factor * most)
        assert CurveOutcome(claim, M, 100, 92).consistent == consistent
    exact = replace(noise, noise_multiplier=most)
    assert CurveOutcome(exact, M, 100, 92).p_value == pytest.approx(0.05, rel=0.05)
    # Calibration to the bound on epsilon gives this noise again.
    again = calibrate(
        found.lower_bound, noise.delta, noise.train_size, noise.batch_size, noise.steps
    )
    assert again.noise_multiplier == pytest.approx(most, rel=5e-3)
    nothing = CurveOutcome(noise, M, 100, 50)
    assert math.isinf(nothing.noise_at_most) and nothing.lower_bound == 0 and nothing.consistent
    for guesses, correct in ((100, 101), (100, -1), (M + 1, 9)):
        with pytest.raises(ValueError, match="allowed: 0 <= right <= guesses <= canaries"):
            CurveOutcome(noise, M, guesses, correct)


def measured(noise: Calibration, share: float, seed: int, places: int = 500) -> MeasuredNoise:
    sigma = share * noise.noise_multiplier * math.sqrt(noise.steps)
    return MeasuredNoise(noise, sigma * np.random.default_rng(seed).standard_normal(places))


def test_bounds_from_measured_noise_hold_with_their_confidence():
    noise, runs = full_batch(4.0), range(4000)
    wrong = [not measured(noise, 1.0, seed, places=50).consistent for seed in runs]
    assert np.sum(wrong) <= 14  # 4 are expected; 15 have probability 10^-5
    loose = [replace(measured(noise, 1.0, seed, 50), confidence=0.9).consistent for seed in runs]
    assert 320 < np.sum(np.logical_not(loose)) < 480


# -- scores and guesses --------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.01, 0.3, 1.0])
def test_scores_are_log_likelihood_ratios(rate):
    sigma, seen = 0.7, np.random.default_rng(4).normal(size=(5, 3))
    included = (1 - rate) * norm.pdf(seen, 0, sigma) + rate * norm.pdf(seen, 1, sigma)
    expected = np.log(included / norm.pdf(seen, 0, sigma)).sum(axis=0)
    np.testing.assert_allclose(likelihood_scores(seen, sigma, rate), expected, rtol=1e-9)


# -- the plan ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "half"), [(1.0, 0.5), (4.0, 0.9), (8.0, 0.9)])
def test_the_plan_detects_half_of_the_noise(epsilon, half):
    noise = full_batch(epsilon)
    plan = plan_audit(noise, M)
    assert plan == plan_audit(noise, M)
    assert plan_audit(noise, M, 20).guesses == 20 and plan_audit(noise, 10).guesses == 10
    assert sum(plan_audit(noise, M, 20).power.values()) < sum(plan.power.values())
    assert plan.power[0.5] >= half and plan.power[0.5] > plan.power[0.7]
    random = np.random.default_rng(9)
    right = simulated_right_guesses(noise, 0.5, M, [plan.guesses], random, runs=300)
    outcomes, times = np.unique(right, return_counts=True)
    refutes = [not CurveOutcome(noise, M, plan.guesses, int(each)).consistent for each in outcomes]
    assert np.sum(times[refutes]) / 300 == pytest.approx(plan.power[0.5], abs=0.1)
