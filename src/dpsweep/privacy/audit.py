"""Two measures of one audited training run, each with a lower bound on epsilon.

A fair coin decides for each of m canaries whether it is a training example (Steinke, Nasr and Jagielski
2023, "Privacy Auditing with One (1) Training Run"). Training claims T steps with noise multiplier sigma and
sampling rate q, and so a trade-off curve.

`CurveOutcome` tests this curve by an attack, without assumptions on the trainer: the auditor guesses some
coins and abstains on the others. Too many right guesses refute the curve (Mahloujifar, Melis and Chaudhuri
2024, "Auditing f-Differential Privacy in One Run"). The number of guesses must be fixed before the run;
`plan_audit` chooses it by simulation.

`MeasuredNoise` measures the noise in coordinates to which no example contributes. It is far sharper, but it
assumes normal noise that is independent between coordinates.

Both give the epsilon of the most noise that they do not refute. They refute the claimed sigma, q and T, not
(epsilon, delta) itself: another mechanism may have the same (epsilon, delta) and another curve.
"""

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.stats import chi2

from dpsweep.privacy.accountants import gaussian_epsilon, pld_epsilon, pld_interval
from dpsweep.privacy.noise import Calibration
from dpsweep.privacy.trade_off import training_trade_off

Floats = npt.NDArray[np.float64]
Coins = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int64]
Rate = Callable[[float], float]
"""A function from a true positive rate to the least false positive rate that the curve allows."""

LEAST_SHARE = 1 / 8
"""Smallest share of the claimed noise that the measures resolve; the bounds hold below it too."""
_MOST_SHARE = 64.0
_PRECISION = 1e-3
NOISE_SHARES = (0.5, 0.7)
"""Shares of the claimed noise for which the power is computed."""
_CANDIDATES = (20, 30, 50, 70, 100, 150, 200, 300, 400, 500, 700, 1000, 2000, 5000)
_FULL_BATCH_RUNS, _SAMPLED_RUNS = 1000, 200


def epsilon_of(noise: Calibration, noise_multiplier: float) -> float:
    """Return epsilon of training with another noise multiplier: in closed form, or by PLD.

    Args:
        noise: gives the sampling and delta; its epsilon sets the mesh of PLD.
        noise_multiplier: of the other noise.
    """
    if noise.sampling.full_batch:
        return gaussian_epsilon(noise.delta, noise_multiplier, noise.steps)
    interval = 4 * pld_interval(noise.epsilon, noise.steps)
    return pld_epsilon(noise_multiplier, noise.sampling_rate, noise.steps, noise.delta, interval)


# -- the trade-off curve ---------------------------------------------------------------------


def refuted(curve: Rate, canaries: int, guesses: int, correct: int, level: float = 0.05) -> bool:
    """Return whether so many right guesses have a probability below ``level`` under a curve.

    >>> from scipy.special import ndtr, ndtri
    >>> def one_gdp(rate):  # mu = 1
    ...     return float(ndtr(ndtri(rate) - 1))
    >>> [refuted(one_gdp, canaries=1000, guesses=100, correct=each) for each in (98, 99)]
    [False, True]

    Let p_j be the probability that exactly j of c' guesses are right. For every set of values of j

        sum of (j / m) p_j  <=  TPR(sum of ((c' - j) / m) p_j),

    where TPR is the largest true positive rate at a false positive rate (theorem 9 of Mahloujifar et al.
    for two values of a secret). If at least c guesses are right with probability ``level``, then
    r = level c / m and h = level (c' - c) / m are lower bounds on the two sums over j >= c. The recursion
    goes down from j = c - 1 to 0: if TPR(h) < r, h must grow, and r grows with it. If r + h exceeds c' / m
    at the end, the probability is smaller.

    Args:
        curve: the claim; concave, and a bound for both values of a coin.
        canaries: m, the number of coins.
        guesses: c', fixed beforehand, at most m.
        correct: c, the number of right guesses, at most c'.
        level: in (0, 1).
    """
    whole = guesses / canaries
    right, wrong = level * correct / canaries, level * (guesses - correct) / canaries
    for j in range(correct - 1, -1, -1):
        needed = curve(min(right, 1.0))
        if needed <= wrong:
            break  # the later iterations change neither
        right += j / (guesses - j) * (needed - wrong)
        wrong = needed
        if right + wrong > whole:
            return True
    return right + wrong > whole


def curve_p_value(curve: Rate, canaries: int, guesses: int, correct: int) -> float:
    """Bound the probability of at least ``correct`` right guesses under a curve, to one part in a million.

    >>> from dpsweep.privacy.trade_off import GaussianTradeOff
    >>> curve = GaussianTradeOff(mu=1.0).false_positive_rate
    >>> f"{curve_p_value(curve, canaries=1000, guesses=100, correct=99):.3f}"
    '0.029'

    Args:
        curve: see `refuted`.
        canaries: m, how many were guessed about.
        guesses: the number of guesses that were made.
        correct: how many of them were right.
    """
    low, high = 0.0, 1.0
    while high - low > 1e-6 * high and high > 1e-12:
        middle = (low + high) / 2
        if refuted(curve, canaries, guesses, correct, middle):
            high = middle
        else:
            low = middle
    return high


def fewest_that_refute(curve: Rate, canaries: int, guesses: int) -> int:
    """Return the smallest number of right guesses that refutes a curve, or guesses + 1 if none does.

    For arguments see `refuted`.
    """
    return bisect.bisect_left(
        range(guesses + 1), True, key=lambda correct: refuted(curve, canaries, guesses, correct)
    )


@dataclass(frozen=True)
class CurveOutcome:
    """The outcome of guesses that test the trade-off curve.

    Attributes:
        noise: the claim.
        canaries: m.
        guesses: number of guessed coins; fixed before the run.
        correct: number of right guesses.
        confidence: the bounds hold with at least this probability.

    Raises:
        ValueError: more guesses are right than were made, or more were made than there are canaries.
    """

    noise: Calibration
    canaries: int
    guesses: int
    correct: int
    confidence: float = 0.95

    def __post_init__(self) -> None:
        if not 0 <= self.correct <= self.guesses <= self.canaries:
            raise ValueError(
                f"found {self.correct} right of {self.guesses} guesses on {self.canaries} canaries; "
                "allowed: 0 <= right <= guesses <= canaries"
            )

    @cached_property
    def noise_at_most(self) -> float:
        """Upper bound on the noise multiplier of training; infinity if no noise is refuted.

        It is the smallest refuted noise multiplier, rounded up. All larger ones are refuted too, because
        more noise gives a lower trade-off curve.
        """
        low, high = math.log(LEAST_SHARE), math.log(_MOST_SHARE)
        if not self._refutes(math.exp(high)):
            return math.inf
        while high - low > _PRECISION:
            middle = (low + high) / 2
            low, high = (low, middle) if self._refutes(math.exp(middle)) else (middle, high)
        return math.exp(high) * self.noise.noise_multiplier

    def _refutes(self, share: float) -> bool:
        claim = replace(self.noise, noise_multiplier=share * self.noise.noise_multiplier)
        curve = training_trade_off(claim).false_positive_rate
        return refuted(curve, self.canaries, self.guesses, self.correct, 1 - self.confidence)

    @property
    def lower_bound(self) -> float:
        """Epsilon of training with the most noise that is not refuted; 0 if no noise is refuted."""
        most = self.noise_at_most
        return 0.0 if math.isinf(most) else epsilon_of(self.noise, most)

    @property
    def p_value(self) -> float:
        """Upper bound on the probability of at least so many right guesses if the claim is true."""
        curve = training_trade_off(self.noise).false_positive_rate
        return curve_p_value(curve, self.canaries, self.guesses, self.correct)

    @property
    def consistent(self) -> bool:
        """Whether the claim stands."""
        return not self._refutes(1.0)


# -- the noise itself --------------------------------------------------------------------------


@dataclass(frozen=True)
class MeasuredNoise:
    """The noise in coordinates to which no example contributes.

    Attributes:
        noise: the claim.
        sums: sums over all steps of the released values of n coordinates, shape (n,).
        confidence: probability that the bounds hold for normal noise that is independent between
            coordinates; a correct trainer is refuted with probability 1 - confidence.
    """

    noise: Calibration
    sums: Floats
    confidence: float = 0.999

    @property
    def noise_at_most(self) -> float:
        """Upper confidence bound on the noise multiplier of training.

        The sum of squares of ``sums`` is T sigma^2 times a chi-squared variable with n degrees of freedom.
        """
        least = chi2.ppf(1 - self.confidence, len(self.sums))
        return float(np.sqrt(np.sum(self.sums**2) / (self.noise.steps * least)))

    @property
    def lower_bound(self) -> float:
        """Epsilon of training with `noise_at_most`."""
        least = LEAST_SHARE * self.noise.noise_multiplier
        return epsilon_of(self.noise, max(self.noise_at_most, least))

    @property
    def consistent(self) -> bool:
        """Whether the claim stands: the claimed noise is not refuted."""
        return self.noise_at_most >= self.noise.noise_multiplier

    def power(self, share: float) -> float:
        """Return the probability of refuting a trainer that adds only a share of the claimed noise.

        Args:
            share: share of the claimed standard deviation.
        """
        places = len(self.sums)
        return float(chi2.cdf(chi2.ppf(1 - self.confidence, places) / share**2, places))


# -- guesses -----------------------------------------------------------------------------------


def likelihood_scores(
    observations: Floats, noise_multiplier: float, sampling_rate: float
) -> Floats:
    """Return the log likelihood ratio of "included" against "excluded" for each canary.

    This is the optimal score (Neyman and Pearson) for a canary that contributes 1 to an observation
    in the steps that sample it. For sampling rate 1 it orders canaries as the sum of observations does.

    Args:
        observations: released gradients along the canaries' directions, minus the known contributions
            of the other examples, shape (T, m).
        noise_multiplier: claimed standard deviation of the noise.
        sampling_rate: claimed probability that an example takes part in a step.

    Returns:
        Scores, shape (m,).
    """
    log_ratio = (2 * observations - 1) / (2 * noise_multiplier**2)
    if sampling_rate == 1:
        return np.asarray(log_ratio.sum(axis=0))
    absent, present = math.log1p(-sampling_rate), math.log(sampling_rate)
    return np.asarray(np.logaddexp(absent, present + log_ratio).sum(axis=0))


def right_guesses(scores: Floats, included: Coins) -> Counts:
    """Count the right guesses of 2, 4, 6, ... guesses, shape (m // 2,).

    Half of the guesses are "included", for the highest scores, and half "excluded", for the lowest.

    Args:
        scores: of the canaries, shape (m,).
        included: their coins, shape (m,).
    """
    ordered, half = included[np.argsort(scores, kind="stable")], len(scores) // 2
    return np.asarray(np.cumsum(ordered[::-1][:half]) + np.cumsum(~ordered[:half]))


# -- the plan ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class AuditPlan:
    """The number of guesses, fixed before a run, and its power.

    Attributes:
        guesses: even; gives the largest power.
        power: from the share of the claimed noise that a trainer adds to the share of runs in which the
            guesses refute the claim.
    """

    guesses: int
    power: dict[float, float]


def plan_audit(noise: Calibration, canaries: int, guesses: int | None = None) -> AuditPlan:
    """Choose the number of guesses by simulation, and compute the power.

    The simulation uses no data of the audited run, so bounds need no correction for the choice.

    Args:
        noise: the claim.
        canaries: m.
        guesses: None chooses the best number.
    """
    random = np.random.default_rng(0)
    candidates = [guesses] if guesses else [each for each in _CANDIDATES if each <= canaries]
    candidates = candidates or [canaries - canaries % 2]
    curve = training_trade_off(noise).false_positive_rate
    needed = [fewest_that_refute(curve, canaries, each) for each in candidates]
    power = {
        share: np.mean(
            simulated_right_guesses(noise, share, canaries, candidates, random) >= needed, axis=0
        )
        for share in NOISE_SHARES
    }
    best = int(np.argmax(sum(power.values())))
    return AuditPlan(
        candidates[best], {share: float(found[best]) for share, found in power.items()}
    )


def simulated_right_guesses(
    noise: Calibration,
    share: float,
    canaries: int,
    guesses: Sequence[int],
    random: np.random.Generator,
    runs: int | None = None,
) -> Counts:
    """Simulate the number of right guesses if a trainer adds a share of the claimed noise.

    The simulation is exact: every canary contributes 1 if it is included and sampled, plus noise.

    Args:
        noise: the claim, which the auditor uses for the scores.
        share: share of the claimed standard deviation that the trainer adds.
        canaries: m.
        guesses: numbers of guesses.
        random: generator of coins, samples and noise.
        runs: number of runs; the default is smaller for sampled batches.

    Returns:
        Right guesses, shape (runs, len(guesses)).
    """
    sigma, rate, steps = noise.noise_multiplier, noise.sampling_rate, noise.steps
    if rate == 1:  # only the sum over the steps matters
        sigma, steps = sigma / np.sqrt(steps), 1
    halves = np.array(guesses) // 2 - 1
    found = []
    for _ in range(runs or (_FULL_BATCH_RUNS if rate == 1 else _SAMPLED_RUNS)):
        included = random.random(canaries) < 0.5
        sampled = random.random((steps, canaries)) < rate
        seen = (included & sampled) + share * sigma * random.standard_normal((steps, canaries))
        found.append(right_guesses(likelihood_scores(seen, sigma, rate), included)[halves])
    return np.array(found)
