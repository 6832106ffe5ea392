"""The tilted bound against closed forms, integrals, another accountant and higher precision."""

import math

import numpy as np
import pytest
import scipy.fft
from scipy.optimize import brentq
from tests.privacy.test_prv import one_step_delta

from dpsweep.privacy import CalibrationError, tilted
from dpsweep.privacy.accountants import pld_epsilon
from dpsweep.privacy.gaussian import gaussian_epsilon
from dpsweep.privacy.prv import PrivacyLoss, prv_epsilon
from dpsweep.privacy.tilted import (
    DIRECTIONS,
    directed_epsilon,
    mesh_width,
    smallest_delta,
    tilted_epsilon,
)

# (noise multiplier, sampling rate, steps, delta): few and many steps, small and large delta.
SETTINGS = [
    (2.18, 256 / 87002, 2719, 1e-5),
    (0.95, 65536 / 87002, 3, 1e-5),
    (0.585, 8 / 50_000, 62_500, 1e-5),
    (1.055, 0.1, 10, 0.1),
    (2.0, 1e-3, 10**6, 1e-7),
]


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("sigma", "q"), [(1.0, 0.1), (2.0, 0.5), (0.7, 0.9)])
def test_one_step_is_bounded_tightly_by_its_exact_epsilon(direction, sigma, q):
    exact = brentq(lambda e: one_step_delta(direction, e, sigma, q) / 1e-5 - 1, 0, 20, rtol=1e-9)
    bound = directed_epsilon(PrivacyLoss(sigma, q, direction), 1, 1e-5, 1e-3 * exact)
    assert exact <= bound <= exact * (1 + 1.2e-3)


@pytest.mark.parametrize(
    ("sigma", "q", "delta"), [(0.5, 3.6e-6, 3e-9), (0.4, 1e-6, 1e-9), (0.8, 1e-4, 1e-8)]
)
def test_so_is_an_epsilon_far_below_what_hardly_any_step_loses(sigma, q, delta):
    """A mesh for the losses of the other steps would have no cell below it."""
    exact = brentq(
        lambda e: one_step_delta("remove", e, sigma, q) / delta - 1, 0, 20, rtol=1e-9, xtol=1e-9
    )
    assert exact < 0.1
    bound = directed_epsilon(PrivacyLoss(sigma, q, "remove"), 1, delta, 1e-3 * exact)
    assert exact <= bound <= exact * (1 + 1.2e-3)


@pytest.mark.parametrize("delta", [0.1, 1e-5, 1e-12, 1e-40])
@pytest.mark.parametrize("steps", [2, 1000])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_sampling_nearly_everything_is_the_analytic_gaussian(direction, steps, delta):
    sigma = 2 * math.sqrt(steps)
    # What is sampled all but always loses privacy all but as if it were.
    q = 1 - 1e-9
    exact = gaussian_epsilon(delta, sigma, steps)
    bound = directed_epsilon(PrivacyLoss(sigma, q, direction), steps, delta, 1e-3 * exact)
    assert exact * (1 - 1e-7) <= bound <= exact * (1 + 1.2e-3)


@pytest.mark.parametrize(("sigma", "q", "steps", "delta"), SETTINGS)
def test_bound_is_that_of_a_fine_privacy_loss_distribution(sigma, q, steps, delta):
    about = tilted_epsilon(sigma, q, steps, delta, 1e-3)
    error = 1e-3 * about
    bound = tilted_epsilon(sigma, q, steps, delta, error)
    # Another code's mesh of the same kind, which is an upper bound as well, by a tenth of the error.
    other = pld_epsilon(sigma, q, steps, delta, mesh_width(sigma, q, steps, delta, error / 10))
    assert other - error / 10 <= bound <= other + 2.5 * error


def test_bound_is_that_of_the_prv_accountant():
    setting = (0.6, 256 / 87002, 2719, 1e-5)
    assert tilted_epsilon(*setting, 1e-3) == pytest.approx(prv_epsilon(*setting, 1e-3), rel=5e-4)


@pytest.mark.parametrize("size", [2**11, 2**13])
def test_a_coarse_mesh_loosens_the_bound_and_never_breaks_it(size, monkeypatch):
    setting = (0.6, 256 / 87002, 2719, 1e-5)
    tight = tilted_epsilon(*setting, 1e-4)
    monkeypatch.setattr(tilted, "MAX_MESH_SIZE", size)
    loose = tilted_epsilon(*setting, 1e-4)
    assert tight < loose < 1.2 * tight


@pytest.mark.parametrize("t", [0.0, 0.5, 20.0])
def test_any_tilt_gives_a_bound(t):
    loss = PrivacyLoss(0.6, 256 / 87002, "remove")
    exact = directed_epsilon(loss, 2719, 1e-5, 1e-3)
    assert tilted._tilted_bound(loss, 2719, 1e-5, t, 1e-3) >= exact * (1 - 1e-3)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_splitting_losses_keeps_the_probabilities_under_both_neighbours(direction):
    loss = PrivacyLoss(0.8, 0.05, direction)
    low, high = loss.extremes(-60.0)
    first, mass = tilted._discretised(loss, -low, high, 0.01)
    losses = 0.01 * (first + np.arange(len(mass)))
    assert mass.min() >= 0
    assert mass.sum() == pytest.approx(1, abs=1e-13)
    assert mass @ np.exp(-losses) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(("add", "expected"), [(0.9, 1.0), (1.1, 1.1)])
def test_the_worse_direction_counts(add, expected, monkeypatch):
    # Removing is the worse wherever we looked, so a real case cannot show this.
    monkeypatch.setattr(
        tilted, "directed_epsilon", lambda loss, *_: 1.0 if loss.direction == "remove" else add
    )
    assert tilted_epsilon(1.0, 0.1, 10, 1e-5, 1e-3) == expected


@pytest.mark.parametrize(("sigma", "q", "steps", "delta"), [*SETTINGS, (0.32, 1e-8, 10**6, 1e-8)])
def test_rounding_stays_far_below_its_allowance(sigma, q, steps, delta, monkeypatch):
    kept = {}
    rfft, irfft = scipy.fft.rfft, scipy.fft.irfft
    monkeypatch.setattr(scipy.fft, "rfft", lambda x: rfft(kept.setdefault("step", x)))
    monkeypatch.setattr(scipy.fft, "irfft", lambda f, n: kept.setdefault("sum", irfft(f, n)))
    loss = PrivacyLoss(sigma, q, "remove")
    tilted._tilted_bound(loss, steps, delta, tilted._chernoff_tilt(loss, steps, delta), 1e-2)
    power, spectrum = np.ones(1, np.clongdouble), rfft(kept["step"].astype(np.longdouble))
    for bit in f"{steps:b}":
        power = power * power * (spectrum if bit == "1" else 1)
    errors = np.cumsum(kept["sum"] - irfft(power, len(kept["step"])))
    allowance = tilted._ROUNDING_PER_STEP * steps + tilted._ROUNDING_PER_TRANSFORM
    assert float(errors.max() - errors.min()) < allowance / 5


def test_a_delta_that_rounding_hides_is_refused():
    assert smallest_delta(10**6) == pytest.approx(1e-8)
    with pytest.raises(CalibrationError, match="cannot resolve delta 1e-15"):
        tilted_epsilon(0.35, 1e-8, 10**6, 1e-15, 1e-3)


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("_STEP_SHARE", 0.5),
        ("_OUTSIDE", 0.3),
        ("_ROUNDING_PER_STEP", 1e-6),
        ("_ROUNDING_PER_TRANSFORM", 3e-3),
    ],
)
def test_whatever_an_error_may_take_is_paid_for(name, share, monkeypatch):
    """With far more for an error, as much is cut off, and the bound rises instead of breaking."""
    sigma, q, steps, delta = SETTINGS[0]
    exact = pld_epsilon(sigma, q, steps, delta, 1e-5)
    monkeypatch.setattr(tilted, name, share)
    bound = directed_epsilon(PrivacyLoss(sigma, q, "remove"), steps, delta, 1e-4 * exact)
    assert bound > exact * (1 + 2e-3)


@pytest.mark.parametrize("steps", [10, 2719])
def test_losses_above_the_mesh_have_their_share_in_all_steps_together(steps, monkeypatch):
    asked = []
    extremes = PrivacyLoss.extremes
    monkeypatch.setattr(
        PrivacyLoss, "extremes", lambda it, log: asked.append(log) or extremes(it, log)
    )
    directed_epsilon(PrivacyLoss(1.0, 0.01, "remove"), steps, 1e-5, 1e-3)
    assert asked
    assert [steps * math.exp(each) for each in asked] == pytest.approx(
        [tilted._STEP_SHARE * 1e-5] * len(asked)
    )
