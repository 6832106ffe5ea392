"""The closed form of full-batch training, and the delta that noise without tails loses."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, special
from scipy.integrate import quad
from scipy.stats import norm

from dpsweep.privacy import Calibration, CalibrationError
from dpsweep.privacy.accountants import gaussian_delta, gaussian_epsilon, gaussian_noise_multiplier
from dpsweep.privacy.noise import GENERATORS, outside_probability, tail_costs

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


@pytest.mark.parametrize("shift", [0.0, 0.2, 1.0, 2.3, 6.0])
@pytest.mark.parametrize("radius", [1.0, 5.768, 8.65, 12.2])
def test_probability_is_the_integral_of_the_density(shift, radius):
    def density(length):
        return length * math.exp(-((length - shift) ** 2) / 2) * special.ive(0, shift * length)

    integral, _ = integrate.quad(density, radius, radius + 40, epsabs=0, limit=200)
    assert outside_probability(shift, radius) == pytest.approx(integral, rel=1e-6)


def noise_of(noise_multiplier: float) -> Calibration:
    return Calibration(8.0, 1e-5, 87002, 256, 680, noise_multiplier, 8.0, "prv", 8.0, None, "")


def test_generators_in_use_have_a_negligible_cost():
    head, *lines = tail_costs([noise_of(0.4385613714925153), noise_of(10.0)])
    assert head.startswith("2 calibrations")
    for line, generator in zip(lines, GENERATORS, strict=True):
        assert line.startswith(f"  {generator.name}, up to {generator.radius:.2f}: at most ")
    assert ["in 0, above all" in line for line in lines] == [True, True, False, False]
    assert "above all of it in 1" in next(line for line in lines if "float32, CPU" in line)


def test_a_generator_in_use_that_costs_much_is_refused():
    """So little noise reveals an example with every generator."""
    costs = tail_costs([noise_of(0.12)])
    for _ in range(1 + len(GENERATORS)):  # the refusal comes after all costs
        next(costs)
    with pytest.raises(
        CalibrationError, match=r"Philox.*, CUDA\): found a cost of more than 0.001"
    ):
        next(costs)
