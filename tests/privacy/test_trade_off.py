"""The best attacker's rates compared with other derivations: never below them, and hardly above."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri
from scipy.stats import binom, norm
from tests.privacy.test_accountants import composed_in_80_bits
from tests.privacy.test_accountants import one_step as exact_one_step

from dpsweep.privacy import Calibration, CalibrationError, Sampling, accountants
from dpsweep.privacy.accountants import gaussian_delta
from dpsweep.privacy.calibration import calibrate
from dpsweep.privacy.trade_off import (
    FALSE_POSITIVE_RATES,
    GROUPS,
    Attack,
    GuaranteedTradeOff,
    attacks_on_tuning,
    best_attack,
    claimed_gaussian,
    explanation,
    guarantee_trade_off,
    paragraph,
    table,
    training_trade_off,
    tuned_trade_off,
)
from dpsweep.privacy.tuning import calibrate_tuning

RATES = (1e-3, 0.01, 0.05, 0.3, 0.9)
SAMPLED = calibrate(2.0, 1e-5, 1000, 200, 30)


def noise_of(sigma: float, batch_size: int, steps: int, epsilon: float = 1.0) -> Calibration:
    """Return noise for N = 1000; its claimed epsilon sets only the mesh."""
    return replace(
        SAMPLED, noise_multiplier=sigma, batch_size=batch_size, steps=steps, epsilon=epsilon
    )


# -- the Gaussian mechanism ------------------------------------------------------------------


@pytest.mark.parametrize("records", GROUPS)
def test_full_batches_have_the_closed_form_of_a_gaussian(records):
    noise = calibrate(1.0, 1e-5, 1000, 1000, 9)
    curve = training_trade_off(noise, records)
    shift = 3 * records / noise.noise_multiplier
    for rate in RATES:
        threshold = norm.isf(rate)  # of the sum of 9 steps over its standard deviation
        assert curve.true_positive_rate(rate) == pytest.approx(norm.sf(threshold - shift))
    middle = norm.cdf(shift / 2) - norm.cdf(-shift / 2)
    assert curve.advantage == pytest.approx(middle)
    assert claimed_gaussian(1.0, 1e-5, records).mu == pytest.approx(shift, rel=1e-6)


# -- sampled batches -------------------------------------------------------------------------


def one_step(sigma: float, q: float, records: int) -> Callable[[float], float]:
    """Return the better of both attackers on one step; their best test is a threshold on its outcome."""
    sampled = np.arange(records + 1)
    weights = binom.pmf(sampled, records, q)

    def present(x):
        return float(weights @ ndtr((x - sampled) / sigma))

    def true_positive_rate(rate: float) -> float:
        # The quantile of the mixture lies between those of its Gaussians.
        above = -sigma * ndtri(rate)
        below = brentq(lambda x: present(x) - rate, -40 * sigma, records + 40 * sigma)
        return max(1 - present(above), float(ndtr(below / sigma)))

    return true_positive_rate


@pytest.mark.parametrize(
    ("sigma", "batch_size", "records"),
    [(0.7, 10, 1), (2.0, 300, 1), (0.7, 10, 10), (2.0, 300, 5), (1.7, 980, 10), (0.8, 999, 5)],
)
def test_one_sampled_step_has_its_exact_rates(sigma, batch_size, records):
    curve = training_trade_off(noise_of(sigma, batch_size, 1), records)
    exact = one_step(sigma, batch_size / 1000, records)
    for rate in RATES:
        true = exact(rate)
        assert true - 1e-9 <= curve.true_positive_rate(rate) <= 1.003 * true
    gains = [exact(rate) - rate for rate in np.geomspace(1e-4, 0.99, 200)]
    assert max(gains) - 1e-9 <= curve.advantage <= 1.003 * max(gains) + 1e-4


def test_one_sampled_step_has_the_deltas_of_its_own_direction():
    """Removing and adding differ most where few examples are sampled and sigma is small."""
    curve = training_trade_off(noise_of(0.7, 10, 1))
    assert isinstance(curve, GuaranteedTradeOff)
    chosen = np.searchsorted(curve.epsilons, [0.005, 0.5, 2.0])
    differ = 0
    for index in chosen:
        epsilon = float(curve.epsilons[index])
        removing, adding = (
            exact_one_step(epsilon, 0.7, 0.01, direction) for direction in ("remove", "add")
        )
        assert curve.removing[index] == pytest.approx(removing, rel=3e-3, abs=1e-9)
        assert curve.adding[index] == pytest.approx(adding, rel=3e-3, abs=1e-9)
        differ += removing > 1.5 * adding
    assert differ


def test_a_curve_allows_for_the_rounding_of_its_composition():
    sigma, batch, steps, epsilon = 20.0, 500, 10_000, 2.0
    noise = noise_of(sigma, batch, steps, epsilon)
    curve, interval = training_trade_off(noise), accountants.pld_interval(epsilon, steps)
    assert isinstance(curve, GuaranteedTradeOff)
    step = from_gaussian_mechanism(
        sigma, sampling_prob=batch / 1000, value_discretization_interval=interval
    )
    one, composed = step._pmf_remove, step.self_compose(steps)._pmf_remove
    right = composed_in_80_bits(one, composed, steps)
    losses = interval * (composed._lower_loss + np.arange(len(right), dtype=np.longdouble))
    for claimed, delta in zip(curve.epsilons[::9], curve.removing[::9], strict=True):
        beyond = losses > claimed
        assert delta >= -(right[beyond] @ np.expm1(np.longdouble(claimed) - losses[beyond]))


def test_removing_and_adding_are_both_bounded():
    """An attacker who searches for absent records may be better than one who searches for present ones."""
    epsilons = np.array([0.0, 1.0])
    one, other = np.array([0.5, 0.1]), np.array([0.5, 0.2])
    for each in (
        GuaranteedTradeOff(epsilons, one, other),
        GuaranteedTradeOff(epsilons, other, one),
    ):
        assert each.true_positive_rate(0.01) == pytest.approx(math.e * 0.01 + 0.2)
        # The first bound, 0.5 + 0.4, is larger than 1 - (1 - 0.1 - 0.4) / e.
        assert each.true_positive_rate(0.4) == pytest.approx(1 - 0.4 / math.e)


# -- without the mechanism -------------------------------------------------------------------


@given(epsilon=st.floats(0, 5), delta=st.floats(0, 0.2), rate=st.floats(0, 1))
def test_the_curve_of_a_pair_is_that_of_the_worst_mechanism(epsilon, delta, rate):
    """With probability delta it reveals the record; otherwise it is right with odds of e^epsilon to 1."""
    honest = 1 / (1 + math.exp(-epsilon))
    # Outcomes in the order of their odds: revealed as present, guessed present, guessed absent, revealed.
    present = np.cumsum([delta, (1 - delta) * honest, (1 - delta) * (1 - honest), 0])
    absent = np.cumsum([0, (1 - delta) * (1 - honest), (1 - delta) * honest, delta])
    exact = float(np.interp(rate, np.append(0, absent), np.append(0, present)))
    exact = max(exact, delta)  # revealed records cause no false positives
    found = guarantee_trade_off(epsilon, delta)
    assert found.true_positive_rate(rate) == pytest.approx(exact, abs=1e-9)
    assert found.advantage == pytest.approx(max(present - absent), abs=1e-9)


def test_group_privacy_of_a_pair():
    found = guarantee_trade_off(0.5, 1e-3, records=3)
    assert found.epsilons == pytest.approx(1.5)
    assert found.removing == found.adding == pytest.approx(1e-3 * (1 + math.exp(0.5) + math.e))
    assert guarantee_trade_off(300.0, 1e-3, records=10).true_positive_rate(0.01) == 1


# -- accounted tuning ------------------------------------------------------------------------


def test_the_bound_of_tuning_follows_its_formula():
    noise = calibrate_tuning(3.0, 1e-5, 2.0, 0.5, [Sampling(1000, 1000, 4)])
    curve = tuned_trade_off(noise)
    mu = 2 / noise.noise[0].noise_multiplier
    own = curve.epsilons - 1.5 * noise.second_epsilon
    assert own[0] == pytest.approx(0) and own[-1] > noise.first_epsilon
    expected = [min(1, 2 * gaussian_delta(max(each, 0), 1 / mu)) for each in own]
    np.testing.assert_allclose(curve.removing, expected, rtol=1e-6)
    leaky = replace(noise, score_noise=0.5 / mu)  # the score reveals more than training
    expected = [min(1, 2 * gaussian_delta(max(each, 0), 0.5 / mu)) for each in own]
    np.testing.assert_allclose(tuned_trade_off(leaky).adding, expected, rtol=1e-6)
    assert attacks_on_tuning(noise) == [best_attack(curve.of_group(each), each) for each in GROUPS]


# -- reports ---------------------------------------------------------------------------------


def test_numbers_in_the_paragraph_are_never_below_the_rates():
    rates = [0.0023001, 0.0195, 0.0831]
    attacks = [
        Attack(1, list(FALSE_POSITIVE_RATES), rates, 0.1015),
        Attack(7, list(FALSE_POSITIVE_RATES), [0.3, 0.58779, 1.0], 0.8),
    ]
    said = paragraph(1.0, 1e-6, attacks)
    for number in (
        "takes 1 of 100 absent", "at most 1.95 of 100 present", "at most 1.95 to 1",
        "at most 55.1 of 100 cases", "ε = 1 and δ = 1e-06", "e^ε = 2.72 times", "at most 58.8 for 7 records",
    ):  # fmt: skip
        assert number in said
    assert "e^ε = more than 10^300 times" in paragraph(1000.0, 1e-6, attacks)
    first, second, *rows = table(attacks)
    assert first.count("|") == second.count("|") == 6
    assert rows == [
        "| 1 | 0.24 % | 1.95 % | 8.31 % | 10.2 % |",
        "| 7 | 30 % | 58.8 % | 100 % | 80 % |",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 1e-5), "allowed: an epsilon above 0"),
        ((math.nan, 1e-5), "found epsilon = nan"),
        ((math.inf, 1e-5), "at most 100"),
        ((1.0, 1.0), "below 1"),
        ((1.0, 1e-5, 100, None, None), "found --train-size alone"),
        ((1.0, 1e-5, None, 10, 3), "found --batch-size and --steps alone"),
        ((1.0, 1e-5, 100, 0, 3), "batch_size = 0: it must be at least 1"),
    ],
)
def test_invalid_numbers_are_refused(arguments, message):
    with pytest.raises(CalibrationError, match=message):
        list(explanation(*arguments))
