"""The privacy of tuning: train a random number of trials, keep the best one.

Mechanism: draw K from a truncated negative binomial distribution, run the base mechanism K times
(each run draws its own setting from a fixed public distribution, trains, and returns a score),
and release only the run with the highest score. Papernot and Steinke (2022, "Hyperparameter Tuning
with Renyi Differential Privacy") proposed it. The bound below uses privacy profiles, like the bound
of Koskela, Redberg and Wang (2024).

Let delta_Q be the privacy profile of the base mechanism, m = E[K], eta the shape and gamma the
parameter of K. For any e1 >= 0 and any e2 >= 0 with

    delta_Q(e2) <= gamma (exp(e2) - 1) / (1 - gamma)                                        (1)

the selection is (e1 + (eta + 1) e2, m delta_Q(e1))-private.

Proof. Let P and Q be the base mechanism on two neighbours, s a score, and P(>s) the probability of
a higher score. The selected run has density p f'(1 - P(>s)), where f is the generating function of K
and f'(x) is proportional to (1 - (1 - gamma) x)^-(eta + 1), at most f'(1) = m. From the profile of P
and Q, Q(>s) <= exp(e2) P(>s) + delta_Q(e2), and with (1)

    gamma + (1 - gamma) Q(>s) <= exp(e2) (gamma + (1 - gamma) P(>s)),

hence f'(1 - P(>s)) <= exp((eta + 1) e2) f'(1 - Q(>s)). So the hockey-stick divergence of the
selection at e1 + (eta + 1) e2 is at most the integral of f'(1 - P(>s)) max(0, p - exp(e1) q), which
is at most m delta_Q(e1).
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy.optimize import brentq

from dpsweep.base.numbers import real
from dpsweep.privacy.sampling import CalibrationError

Profile = Callable[[float], float]
"""A non-increasing function from epsilon >= 0 to the smallest delta, the larger of both directions."""

_LARGEST_EPSILON = 1e4


def gamma_of_mean(mean: float, shape: float) -> float:
    """Return the parameter gamma in (0, 1) of a truncated negative binomial distribution.

    >>> f"{gamma_of_mean(mean=10, shape=1):.3f}"
    '0.100'

    Args:
        mean: E[K], above 1.
        shape: eta, above -1; 1 is the geometric and 0 the logarithmic distribution.

    Raises:
        CalibrationError: the mean or the shape is out of range.
    """
    real("mean", mean, CalibrationError)
    real("shape", shape, CalibrationError)
    if not mean > 1:
        raise CalibrationError(f"mean number of trials {mean}: it must be above 1")
    if not shape > -1:
        raise CalibrationError(f"shape {shape}: it must be above -1")

    def excess(log_gamma: float) -> float:
        return math.log(_mean(math.exp(log_gamma), shape) / mean)

    # The mean falls from infinity at gamma = 0 to 1 at gamma = 1. For shapes near -1 or very large shapes,
    # the solution lies outside these ends.
    lowest, highest = -500.0, -1e-9
    if not excess(lowest) > 0 > excess(highest):
        raise CalibrationError(
            f"shape {shape:g}: found no distribution with a mean of {mean:g} trials in double precision; use "
            "a shape nearer to 1"
        )
    return math.exp(brentq(excess, lowest, highest, xtol=1e-14))


def _mean(gamma: float, shape: float) -> float:
    if shape == 0:
        return (1 / gamma - 1) / -math.log(gamma)
    return shape * (1 - gamma) / (gamma * -math.expm1(shape * math.log(gamma)))


def trial_count_probabilities(mean: float, shape: float, largest: int) -> np.ndarray:
    """Return P[K = k] for k from 1 to ``largest``, shape (largest,).

    >>> trial_count_probabilities(mean=2.0, shape=1.0, largest=3)
    array([0.5  , 0.25 , 0.125])

    Raises:
        CalibrationError: the mean or the shape is out of range.
    """
    gamma = gamma_of_mean(mean, shape)
    k = np.arange(1, largest + 1)
    # prod_{l < k} (l + eta) / (l + 1) over gamma^-eta - 1; its limit at eta = 0 is 1 / (k ln(1/gamma)).
    if shape == 0:
        return (1 - gamma) ** k / (k * -math.log(gamma))
    ratios = (np.arange(largest) + shape) / (np.arange(largest) + 1)
    normaliser = math.expm1(-shape * math.log(gamma))
    return np.asarray((1 - gamma) ** k * np.cumprod(ratios) / normaliser)


def draw_trial_count(mean: float, shape: float, random: np.random.Generator) -> int:
    """Draw K by inverting its distribution function.

    Raises:
        CalibrationError: the mean or the shape is out of range.
    """
    uniform, largest = random.random(), 64
    while True:
        cumulative = np.cumsum(trial_count_probabilities(mean, shape, largest))
        if uniform < cumulative[-1] or cumulative[-1] > 1 - 1e-12:
            return int(np.searchsorted(cumulative, uniform, side="right")) + 1
        largest *= 4


def largest_profile(profiles: Sequence[Profile]) -> Profile:
    """Return the pointwise largest profile, a bound for a random choice among settings."""
    return lambda epsilon: max(profile(epsilon) for profile in profiles)


def total_epsilon(profile: Profile, delta: float, mean: float, shape: float) -> float:
    """Return an epsilon for which the selection is (epsilon, delta)-private.

    Args:
        profile: of the base mechanism.
        delta: of the selection's guarantee, in (0, 1).
        mean: E[K], the expected number of trials, above 1.
        shape: eta of the distribution of K, above -1.

    Raises:
        CalibrationError: a number is out of range, or the profile never falls to ``delta / mean``.
    """
    real("delta", delta, CalibrationError)
    if not 0 < delta < 1:
        raise CalibrationError(f"delta = {delta}: it must lie strictly between 0 and 1")
    gamma = gamma_of_mean(mean, shape)
    first = _smallest(lambda epsilon: profile(epsilon) <= delta / mean, f"delta / {mean}")
    return first + (shape + 1) * second_epsilon(profile, gamma)


def second_delta(epsilon: float, gamma: float) -> float:
    """Return the largest delta that satisfies condition (1) at an epsilon."""
    return gamma * math.expm1(epsilon) / (1 - gamma)


def second_epsilon(profile: Profile, gamma: float) -> float:
    """Return the smallest e2 of condition (1).

    Raises:
        CalibrationError: no epsilon meets the condition.
    """

    def admissible(epsilon: float) -> bool:
        # Above 700, exp overflows, and every profile is smaller.
        return epsilon > 700 or profile(epsilon) <= second_delta(epsilon, gamma)

    return _smallest(admissible, "condition (1)")


def _smallest(holds: Callable[[float], bool], what: str) -> float:
    """Return the smallest epsilon for which a condition holds, rounded up by at most 1e-9 of its value."""
    if holds(0.0):
        return 0.0
    low, high = 0.0, 1e-3
    while not holds(high):
        low, high = high, 2 * high
        if high > _LARGEST_EPSILON:
            raise CalibrationError(
                f"the privacy profile does not meet {what} at any epsilon up to {_LARGEST_EPSILON:g}"
            )
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
