"""A lower bound on epsilon from an auditor's guesses about one training run.

Steinke, Nasr and Jagielski 2023, "Privacy Auditing with One (1) Training Run". A fair coin decides
for each of m canaries whether it is a training example. The auditor sees the released output of
training, guesses some of the coins and abstains on the others. If training is (epsilon, delta)-DP,
a guess is right with probability at most e^epsilon / (1 + e^epsilon), nearly independently of the
others. So too many right guesses refute the claim.

The number of guesses must be fixed before the run. A choice that depends on the result would need
a correction.
"""

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.stats import binom

Floats = npt.NDArray[np.float64]
Coins = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int64]

# At this epsilon a guess is right with probability 1 in double precision: nothing refutes it.
_IRREFUTABLE = 40.0


@dataclass(frozen=True)
class AuditOutcome:
    """The outcome of one audited run, with its lower bound on epsilon.

    Attributes:
        claimed_epsilon: target of the run's calibration.
        delta: of the claim.
        canaries: m.
        guesses: number of guessed coins; fixed before the run.
        correct: number of right guesses.
        confidence: `lower_bound` holds with at least this probability.
    """

    claimed_epsilon: float
    delta: float
    canaries: int
    guesses: int
    correct: int
    confidence: float = 0.95

    @property
    def lower_bound(self) -> float:
        """Lower bound on epsilon with the given confidence."""
        return epsilon_lower_bound(
            self.canaries, self.guesses, self.correct, self.delta, self.confidence
        )

    @property
    def p_value(self) -> float:
        """Upper bound on the probability of at least so many right guesses if the claim is true."""
        return p_value(self.canaries, self.guesses, self.correct, self.claimed_epsilon, self.delta)

    @property
    def consistent(self) -> bool:
        """Whether the claim stands: the lower bound does not exceed it."""
        return self.lower_bound <= self.claimed_epsilon


def check_counts(canaries: int, guesses: int, correct: int) -> None:
    """Refuse impossible numbers of canaries, guesses and right guesses.

    Raises:
        ValueError: unless 0 <= correct <= guesses <= canaries.
    """
    if not 0 <= correct <= guesses <= canaries:
        raise ValueError(
            f"{correct} right of {guesses} guesses about {canaries} canaries: it must be "
            "0 <= right <= guesses <= canaries"
        )


def fewest(refutes: Callable[[int], bool], guesses: int) -> int:
    """Return the smallest number of right guesses that refutes a claim, or guesses + 1 if none does.

    Args:
        refutes: whether a number of right guesses refutes the claim; larger numbers must refute it too.
        guesses: number of guesses.
    """
    return bisect.bisect_left(range(guesses + 1), True, key=refutes)


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Bound the probability of ``correct`` or more right guesses under (epsilon, delta)-DP.

    >>> f"{p_value(canaries=1000, guesses=100, correct=90, epsilon=1.0, delta=1e-5):.2g}"
    '0.00084'

    Theorem 5.2 of Steinke et al.: let f(v) be the probability that at least v of r guesses are right
    if each is right independently with probability e^epsilon / (1 + e^epsilon). Then the bound is
    f(v) + 2 m delta max_i (f(v - i) - f(v)) / i, i = 1..v.

    Args:
        canaries: m, the number of coins.
        guesses: r, the number of guesses, fixed beforehand.
        correct: v, the number of right ones.
        epsilon: of the claim, at least 0.
        delta: of the claim.

    Raises:
        ValueError: unless 0 <= correct <= guesses <= canaries, epsilon >= 0, 0 <= delta < 1, and
            2 m delta <= 1 (otherwise the bound is useless).
    """
    check_counts(canaries, guesses, correct)
    if not (epsilon >= 0 and 0 <= delta < 1):
        raise ValueError(
            f"epsilon = {epsilon} and delta = {delta}: it must be epsilon >= 0 and 0 <= delta < 1"
        )
    if 2 * canaries * delta > 1:
        raise ValueError(
            f"{canaries} canaries prove nothing about delta = {delta}: use at most "
            f"{0.5 / delta:.0f}"
        )
    if correct == 0:
        return 1.0
    accuracy = 1 / (1 + math.exp(-epsilon))
    at_least = binom.sf(np.arange(correct, -1, -1) - 1, guesses, accuracy)  # f(v), ..., f(0)
    slope = np.max((at_least[1:] - at_least[0]) / np.arange(1, correct + 1))
    return min(1.0, float(at_least[0] + 2 * canaries * delta * slope))


def epsilon_lower_bound(
    canaries: int, guesses: int, correct: int, delta: float, confidence: float = 0.95
) -> float:
    """Return the largest epsilon that the guesses refute; 0 if they refute none.

    >>> f"{epsilon_lower_bound(canaries=1000, guesses=100, correct=90, delta=1e-5):.2f}"
    '1.63'

    For every true epsilon, the bound exceeds it with probability at most 1 - confidence.

    Args:
        canaries: m, the number of coins.
        guesses: r, the number of guesses, fixed beforehand.
        correct: v, the number of right ones.
        delta: of the claim.
        confidence: in (0, 1).

    Raises:
        ValueError: as `p_value`, or the confidence is not in (0, 1).
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence = {confidence}: it must lie strictly between 0 and 1")

    def excess(epsilon: float) -> float:
        """Return the p-value minus the level of refutation; it grows with epsilon."""
        return p_value(canaries, guesses, correct, epsilon, delta) - (1 - confidence)

    if excess(0.0) >= 0:
        return 0.0
    return float(brentq(excess, 0.0, _IRREFUTABLE, xtol=1e-9))


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


def count_correct(scores: Floats, included: Coins, guesses: int) -> int:
    """Guess that the highest scores are included and the lowest excluded; count right guesses.

    Args:
        scores: of the canaries, shape (m,).
        included: their coins, shape (m,).
        guesses: an even number; half of the guesses are "included", half "excluded".
    """
    return int(right_guesses(scores, included)[guesses // 2 - 1])


def right_guesses(scores: Floats, included: Coins) -> Counts:
    """Count the right guesses of `count_correct` for 2, 4, 6, ... guesses, shape (m // 2,).

    Args:
        scores: of the canaries, shape (m,).
        included: their coins, shape (m,).
    """
    ordered, half = included[np.argsort(scores, kind="stable")], len(scores) // 2
    return np.asarray(np.cumsum(ordered[::-1][:half]) + np.cumsum(~ordered[:half]))
