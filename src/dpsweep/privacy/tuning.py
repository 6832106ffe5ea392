"""The privacy of tuning, and the noise that it needs: train a random number of trials, keep the best one.

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

So a total (epsilon, delta) sets two conditions on the base mechanism: delta_Q(e1) <= delta / m, and (1).
Every (N, B, T) of the candidates must satisfy both. So must the score, which is one Gaussian mechanism of
sensitivity 1 on examples that are not in the training set.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.optimize import brentq

from dpsweep.base.errors import real
from dpsweep.privacy import accountants
from dpsweep.privacy.calibration import calibrate_sampling, certify_again
from dpsweep.privacy.noise import Calibration, CalibrationError, Sampling, checked_target

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
    if not (mean > 1 and shape > -1):
        raise CalibrationError(
            f"found a mean number of trials {mean} and shape {shape}; allowed: a mean above 1 and a shape "
            "above -1"
        )

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


# The total lies in [1 - SLACK, 1] times the target.
SLACK = 2e-3
# Machines may differ in the last digits.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class TuningNoise:
    """The noise of accounted tuning, and its certified epsilons.

    Attributes:
        epsilon: target for the total.
        delta: of the total guarantee.
        mean_trials: expected number of trials.
        shape: eta of the distribution of the number of trials.
        gamma: parameter of this distribution.
        first_epsilon: certified for each candidate at ``delta / mean_trials``.
        second_epsilon: certified for each candidate at ``second_delta``.
        second_delta: gamma (exp(second_epsilon) - 1) / (1 - gamma).
        score_noise: standard deviation of the noise on the number of right answers.
        noise: the calibration of each sampling, certified for ``first_epsilon``.
    """

    epsilon: float
    delta: float
    mean_trials: float
    shape: float
    gamma: float
    first_epsilon: float
    second_epsilon: float
    second_delta: float
    score_noise: float
    noise: list[Calibration]

    @property
    def total_epsilon(self) -> float:
        """Proven epsilon of the selection, at most ``epsilon``."""
        return self.first_epsilon + (self.shape + 1) * self.second_epsilon

    def calibration(self, sampling: Sampling) -> Calibration:
        """Return the noise of the candidates with a sampling."""
        (found,) = (each for each in self.noise if each.sampling == sampling)
        return found


def calibrate_tuning(
    epsilon: float, delta: float, mean: float, shape: float, samplings: Sequence[Sampling]
) -> TuningNoise:
    """Return the least noise for which the choice of the best trial meets a total (epsilon, delta).

    Args:
        epsilon: of the selection, positive and finite.
        delta: of the selection, in (0, 1).
        mean: expected number of trials, above 1.
        shape: of their distribution, above -1.
        samplings: of the candidates; duplicates are ignored.

    Raises:
        CalibrationError: a number is out of range, no base mechanism meets the total, or two
            accountants disagree.
    """
    epsilon, delta = checked_target(epsilon, delta, _LARGEST_EPSILON)
    gamma = gamma_of_mean(mean, shape)
    distinct = list(dict.fromkeys(samplings))
    try:
        first = _gaussian_base(epsilon, delta, mean, shape)
        for _ in range(20):
            noise = [calibrate_sampling(first, delta / mean, each) for each in distinct]
            # With a margin for rounding in the closed form of the score, and on other machines.
            second = (1 + 1e-6) * max(
                second_epsilon(training_profile(each), gamma) for each in noise
            )
            total = first + (shape + 1) * second
            if (1 - SLACK) * epsilon <= total <= epsilon:
                break
            first *= epsilon * (1 - SLACK / 2) / total
        else:
            raise CalibrationError(f"the search for the base of epsilon {epsilon:g} did not end")
    except CalibrationError as error:
        raise CalibrationError(
            f"no base mechanism gives a total epsilon of {epsilon:g} at delta {delta:g} with {mean:g} "
            f"trials in the mean: {error}"
        ) from error
    return TuningNoise(
        epsilon=epsilon,
        delta=delta,
        mean_trials=mean,
        shape=shape,
        gamma=gamma,
        first_epsilon=first,
        second_epsilon=second,
        second_delta=second_delta(second, gamma),
        score_noise=_score_noise(first, delta / mean, second, second_delta(second, gamma)),
        noise=noise,
    )


def certify_tuning_again(noise: TuningNoise) -> TuningNoise:
    """Run both accountants at the noise multipliers of accounted tuning, for both conditions.

    Args:
        noise: only its total, delta, mean, shape, both epsilons, and the (N, B, T) and noise multiplier
            of each calibration are used.

    Returns:
        The noise with new results, the same as those of `calibrate_tuning`.

    Raises:
        CalibrationError: a number is out of range, a condition does not hold, or the accountants
            disagree.
    """
    gamma = gamma_of_mean(noise.mean_trials, noise.shape)
    first, first_delta = noise.first_epsilon, noise.delta / noise.mean_trials
    second, large_delta = noise.second_epsilon, second_delta(noise.second_epsilon, gamma)
    total = noise.total_epsilon
    if not (1 - SLACK) * noise.epsilon <= total <= noise.epsilon:
        raise CalibrationError(
            f"first_epsilon + (shape + 1) second_epsilon: found {total:.6g}, expected one in "
            f"[{1 - SLACK}, 1] times {noise.epsilon:g}"
        )
    again = [certify_again(replace(each, epsilon=first, delta=first_delta)) for each in noise.noise]
    for each in again:
        if (found := training_profile(each)(second)) > large_delta * (1 + _ROUNDING):
            raise CalibrationError(
                f"second_delta: found {found:.6g} at epsilon {second:.6g}, expected at most "
                f"{large_delta:.6g}"
            )
    return replace(
        noise,
        gamma=gamma,
        second_delta=large_delta,
        score_noise=_score_noise(first, first_delta, second, large_delta),
        noise=again,
    )


def _score_noise(first: float, first_delta: float, second: float, second_delta: float) -> float:
    """Return the standard deviation of the noise with which a score satisfies both conditions."""
    return max(
        accountants.gaussian_noise_multiplier(first, first_delta),
        accountants.gaussian_noise_multiplier(second, second_delta) if second_delta < 1 else 0.0,
    )


def _gaussian_base(epsilon: float, delta: float, mean: float, shape: float) -> float:
    """Return first_epsilon for a base of one Gaussian mechanism, to start the search."""

    def total(first: float) -> float:
        sigma = accountants.gaussian_noise_multiplier(first, delta / mean)
        return total_epsilon(gaussian_profile(sigma), delta, mean, shape)

    def excess(log_first: float) -> float:
        return math.log(total(math.exp(log_first)) / epsilon)

    lowest = math.log(epsilon) - 7
    if excess(lowest) > 0:
        raise CalibrationError("it is too small: use a larger epsilon or fewer trials")
    return math.exp(brentq(excess, lowest, math.log(epsilon), xtol=1e-3))


def gaussian_profile(noise_multiplier: float, steps: int = 1) -> Profile:
    """Return the privacy profile of Gaussian mechanisms of sensitivity 1, in closed form."""
    return lambda epsilon: accountants.gaussian_delta(epsilon, noise_multiplier, steps)


@lru_cache(maxsize=16)
def training_profile(noise: Calibration) -> Profile:
    """Return a proven privacy profile of training, by PLD, or in closed form for the full batch.

    Profiles are cached because a tuned release uses each of them several times.
    """
    if noise.sampling.full_batch:
        return gaussian_profile(noise.noise_multiplier, noise.steps)
    loss = accountants.privacy_loss(
        noise.noise_multiplier,
        noise.sampling_rate,
        noise.steps,
        accountants.profile_interval(noise),
    )
    allowance = accountants.rounding_allowance(noise.steps)
    return lambda epsilon: float(loss.get_delta_for_epsilon(epsilon)) + allowance


def trial_profile(noise: TuningNoise) -> Profile:
    """Return the largest profile of the settings and of the score: a bound for a random choice among them."""
    profiles = [*map(training_profile, noise.noise), gaussian_profile(noise.score_noise)]
    return lambda epsilon: max(profile(epsilon) for profile in profiles)
