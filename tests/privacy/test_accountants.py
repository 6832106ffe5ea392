"""Bounds on epsilon, compared with independent computations of the exact delta."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.fft
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import minimize_scalar
from scipy.special import ndtr
from scipy.stats import norm

from dpsweep.privacy import CalibrationError, Sampling, accountants
from dpsweep.privacy.accountants import (
    certified_bound,
    composed_epsilon,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_noise_multiplier,
    pld_epsilon,
    prv_epsilon,
    rounding_allowance,
)
from dpsweep.privacy.calibration import calibrate

Complex = npt.NDArray[np.complex128]
DELTA = 1e-5
SIZE = 10**6
# (noise multiplier, batch size of a million, steps, delta): heavy and light tails, few and many steps.
FEW = [
    (1.0, 100_000, 1, DELTA),
    (2.0, 500_000, 1, 1e-3),
    (0.7, 900_000, 1, 1e-8),
    (1.0, 100_000, 2, DELTA),
    (1.5, 300_000, 2, 1e-3),
    (0.95, 750_000, 2, 1e-8),
]
MANY = [
    (17.0, 750_000, 6, DELTA),
    (3.0, 500_000, 20, 1e-8),
    (5.0, 47_500, 42, DELTA),
    (1.1, 50_000, 300, DELTA),
    (1.2, 40_000, 1000, 1e-8),
    (1.0, 10_000, 1000, DELTA),
    (0.6, 2_940, 2719, 1e-3),
    (20.0, 500_000, 10_000, 1e-8),
    (2.0, 1_000, 10**6, DELTA),
]
DIRECTIONS = ("remove", "add")


# -- the exact delta ---------------------------------------------------------------------------


def one_step(epsilon: float, sigma: float, q: float, direction: str) -> float:
    """Return delta of one step in closed form.

    Outcomes are (1-q) N(0, sigma^2) + q N(1, sigma^2) with the example, N(0, sigma^2) without it.
    """
    level = epsilon if direction == "remove" else -epsilon
    if level <= math.log1p(-q):  # no outcome has so small a ratio of densities
        return -math.expm1(epsilon) if direction == "remove" else 0.0
    # The outcome at which the ratio of densities is exp(level).
    x = sigma**2 * math.log((math.expm1(level) + q) / q) + 0.5
    sign = -1 if direction == "remove" else 1
    without = ndtr(sign * x / sigma)
    mixed = (1 - q) * without + q * ndtr(sign * (x - 1) / sigma)
    return float(
        mixed - math.exp(epsilon) * without
        if direction == "remove"
        else without - math.exp(epsilon) * mixed
    )


def two_steps(epsilon: float, sigma: float, q: float, direction: str) -> float:
    """Integrate the closed form of the second step over the outcomes of the first one."""

    def of_first(x):
        normal = math.exp(-((x / sigma) ** 2) / 2) / (sigma * math.sqrt(2 * math.pi))
        ratio = 1 + q * math.expm1((2 * x - 1) / (2 * sigma**2))
        if direction == "remove":
            return normal * ratio * one_step(epsilon - math.log(ratio), sigma, q, direction)
        return normal * one_step(epsilon + math.log(ratio), sigma, q, direction)

    ends = np.linspace(-12 * sigma, 12 * sigma + 1, 41)
    return float(sum(quad(of_first, *each, epsabs=1e-18)[0] for each in pairwise(ends)))


def moment(z: Complex, sigma: float, q: float, direction: str) -> Complex:
    """Return E exp(z Y) of the privacy loss Y of a step, by the trapezoidal rule."""
    beyond = 13 * sigma + 1 + max(z.real)
    x = np.arange(-beyond, beyond, min(sigma / 10, sigma**2 / 5))
    loss = np.log1p(q * np.expm1((2 * x - 1) / (2 * sigma**2)))
    density = -((x / sigma) ** 2) / 2 - math.log(sigma * math.sqrt(2 * math.pi))
    power = z + 1 if direction == "remove" else -z
    return np.asarray(np.exp(density + power[:, None] * loss).sum(axis=1) * (x[1] - x[0]))


def many_steps(epsilon: float, sigma: float, q: float, steps: int, direction: str) -> float:
    """Return delta by Fourier inversion along z = a + iu, without a mesh of privacy losses.

    max(0, 1 - exp(epsilon - s)) is the integral of exp(z (s - epsilon)) / (2 pi i z (z + 1)) over z, so delta
    is that of exp(-z epsilon) E exp(z Y)^T / (2 pi i z (z + 1)). At the saddle point a, nothing cancels.
    """

    def integrand(z):
        exponent = steps * np.log(moment(z, sigma, q, direction)) - z * epsilon
        return np.asarray(np.exp(exponent) / (z * (z + 1)))

    def height(log_a):
        a = np.array([math.exp(log_a)], dtype=np.complex128)
        exponent = steps * np.log(moment(a, sigma, q, direction)) - a * epsilon
        return float((exponent - np.log(a * (a + 1))).real[0])

    a = math.exp(minimize_scalar(height, bounds=(-3, math.log(40 / epsilon)), method="bounded").x)
    width, total, first = a / 10, 0.0, 0
    while True:
        values = integrand(a + 1j * width * np.arange(first, first + 128)).real
        values[0] *= 0.5 if first == 0 else 1.0
        total += float(values.sum())
        first += 128
        if np.abs(values[-16:]).max() * first < 1e-12 * total:
            return total * width / math.pi


def exact_delta(epsilon: float, sigma: float, q: float, steps: int, direction: str) -> float:
    few: dict[int, Callable[..., float]] = {1: one_step, 2: two_steps}
    if steps in few:
        return few[steps](epsilon, sigma, q, direction)
    return many_steps(epsilon, sigma, q, steps, direction)


# -- the bound ---------------------------------------------------------------------------------


def bound(sigma: float, batch: int, steps: int, delta: float, coarser: float = 1.0) -> float:
    about = pld_epsilon(sigma, batch / SIZE, steps, delta, 1e-3)
    return certified_bound(sigma, Sampling(SIZE, batch, steps), delta, about, coarser)


@pytest.mark.parametrize(("sigma", "batch", "steps", "delta"), FEW + MANY)
def test_the_bound_is_not_below_the_exact_epsilon_and_hardly_above(sigma, batch, steps, delta):
    epsilon, q = bound(sigma, batch, steps, delta), batch / SIZE
    for direction in DIRECTIONS:
        assert exact_delta(epsilon, sigma, q, steps, direction) <= delta
    # The exact epsilon of a delta without the allowance is at most half a thousandth smaller.
    smaller = delta - rounding_allowance(steps)
    assert exact_delta(epsilon * (1 - 5e-4), sigma, q, steps, "remove") > smaller


def test_the_allowance_is_subtracted_from_delta(monkeypatch):
    setting = (2.18, 256 / 87_002, 2719)
    sampling = Sampling(87_002, 256, 2719)
    right = certified_bound(setting[0], sampling, DELTA, 0.25)
    monkeypatch.setattr(accountants, "rounding_allowance", lambda steps: steps * DELTA / 30_000)
    found = certified_bound(setting[0], sampling, DELTA, 0.25)
    assert found == pytest.approx(
        pld_epsilon(*setting, (1 - 2719 / 30_000) * DELTA, 1e-5), rel=6e-4
    )
    assert found > 1.002 * right


def test_a_delta_that_the_allowance_would_use_up_is_refused():
    least = 10 * rounding_allowance(1000)
    certified_bound(1.0, Sampling(1000, 10, 1000), 1.001 * least, 3.0)
    with pytest.raises(CalibrationError, match=r"use a delta of at least 7\.3e-11"):
        certified_bound(1.0, Sampling(1000, 10, 1000), 0.999 * least, 3.0)


def composed_in_80_bits(one: Any, composed: Any, steps: int) -> npt.NDArray[np.longdouble]:
    """Return the right probabilities of a composed distribution, from those of a step."""
    size = scipy.fft.next_fast_len(max(len(composed._probs), len(one._probs)))
    power = np.ones(size, np.clongdouble)
    spectrum = scipy.fft.fft(one._probs.astype(np.longdouble), size)
    for bit in f"{steps:b}":
        power = power * power * (spectrum if bit == "1" else 1)
    offset = composed._lower_loss - steps * one._lower_loss
    right = scipy.fft.ifft(power).real
    return np.asarray(np.roll(right, -(offset % size))[: len(composed._probs)])


@pytest.mark.parametrize(("sigma", "batch", "steps", "delta"), [FEW[2], MANY[4], MANY[7]])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_rounding_stays_far_below_its_allowance(sigma, batch, steps, delta, direction):
    """Compose the library's step in 80 bits, and compare the sums of all tails."""
    interval = 1e-3 * bound(sigma, batch, steps, delta) / math.sqrt(steps)
    step = from_gaussian_mechanism(
        sigma, sampling_prob=batch / SIZE, value_discretization_interval=interval
    )
    one, composed = (
        getattr(each, f"_pmf_{direction}") for each in (step, step.self_compose(steps))
    )
    errors = np.cumsum(composed._probs - composed_in_80_bits(one, composed, steps))
    assert float(errors.max() - errors.min()) < rounding_allowance(steps) / 10


# -- prv-accountant ----------------------------------------------------------------------------


@pytest.mark.parametrize("setting", [*FEW[::2], *MANY[:5]])
def test_prv_accountant_agrees(setting):
    sigma, batch, steps, delta = setting
    epsilon = bound(*setting)
    found = prv_epsilon(sigma, Sampling(SIZE, batch, steps), delta, epsilon)
    assert found == pytest.approx(epsilon, rel=5e-3)
    assert prv_epsilon(2.0, Sampling(SIZE, 1_000, 10**6), DELTA, 0.05) is None  # it takes long


@pytest.mark.parametrize("count", [1, 2, 5])
def test_trainings_on_the_full_batch_are_one_longer_training(count):
    noise = calibrate(8.0, DELTA, 1000, 1000, 10)
    found = composed_epsilon([noise] * count, [], count * DELTA)
    exact = gaussian_epsilon(count * DELTA, noise.noise_multiplier, 10 * count)
    assert exact <= found <= 1.001 * exact
    assert found <= (8.0 if count == 1 else 0.8 * 8.0 * count)


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


# -- the closed form of full-batch training ---------------------------------------------------

REFERENCE = {0.25: 13.285525, 0.5: 7.031827, 1: 3.730632, 2: 1.993812, 4: 1.081162, 8: 0.600229}


@pytest.mark.parametrize(("epsilon", "sigma"), REFERENCE.items())
@pytest.mark.parametrize("steps", [1, 32])
def test_noise_multiplier_is_the_reference_value_times_the_root_of_the_steps(epsilon, sigma, steps):
    found = gaussian_noise_multiplier(epsilon, 1e-5, steps)
    assert found == pytest.approx(sigma * math.sqrt(steps), rel=1e-6)


@pytest.mark.parametrize(("epsilon", "sigma"), [(0.0, 2.0), (0.25, 13.3), (1, 3.7), (8, 0.6)])
def test_delta_is_the_hockey_stick_divergence_of_two_gaussians(epsilon, sigma):
    def excess(x):
        return norm.pdf(x, 1, sigma) - math.exp(epsilon) * norm.pdf(x, 0, sigma)

    start = epsilon * sigma**2 + 0.5  # where the excess changes sign
    integral, _ = quad(excess, start, start + 40 * sigma, epsabs=1e-14, epsrel=1e-12, limit=400)
    assert gaussian_delta(epsilon, sigma) == pytest.approx(integral, rel=1e-8)


@given(epsilon=st.floats(1e-3, 50), log_delta=st.floats(-12, -2), steps=st.integers(1, 10_000))
def test_calibrated_noise_meets_its_target_and_is_minimal(epsilon, log_delta, steps):
    delta = 10**log_delta
    sigma = gaussian_noise_multiplier(epsilon, delta, steps)
    assert epsilon * (1 - 1e-6) <= gaussian_epsilon(delta, sigma, steps) <= epsilon
    assert gaussian_epsilon(delta, sigma * 0.999, steps) > epsilon


def test_extreme_numbers_give_zero_or_an_error():
    assert gaussian_delta(0.0, 1e6) < 1e-5
    assert gaussian_epsilon(1e-5, 1e6) == 0
    with pytest.raises(CalibrationError, match="outside"):
        gaussian_noise_multiplier(1e-12, 1e-12)
