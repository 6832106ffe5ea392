"""A one-run bound from the trade-off curve that is claimed for training.

Mahloujifar, Melis and Chaudhuri 2024, "Auditing f-Differential Privacy in One Run". As in
`dpsweep.privacy.guesses`, the auditor guesses some of m coins. Suppose that training has a trade-off curve,
and let p_j be the probability that exactly j of c' guesses are right. For every set of values of j the paper
proves

    sum of (j / m) p_j  <=  TPR(sum of ((c' - j) / m) p_j),

where TPR is the largest true positive rate at a false positive rate (theorem 9 for two values of a secret,
k = 2). If at least c guesses are right with probability a, then r = a c / m and h = a (c' - c) / m are lower
bounds on the two sums over j >= c. The recursion goes down from j = c - 1 to 0: if TPR(h) < r, h must grow,
and r grows with it. If r + h exceeds c' / m at the end, a is impossible, so a is an upper bound on the
probability.

A curve contains more information than one (epsilon, delta), so the bound is sharper than that of `guesses`.
But it refutes the claimed noise, sampling rate and number of steps, not (epsilon, delta) itself: a mechanism
may have (epsilon, delta) and another curve.
"""

from collections.abc import Callable

from dpsweep.privacy.guesses import check_counts, fewest

Rate = Callable[[float], float]
"""A function from a true positive rate to the least false positive rate that the curve allows."""


def refuted(curve: Rate, canaries: int, guesses: int, correct: int, level: float = 0.05) -> bool:
    """Return whether so many right guesses have a probability below ``level`` under a curve.

    >>> from scipy.special import ndtr, ndtri
    >>> def one_gdp(rate):  # mu = 1
    ...     return float(ndtr(ndtri(rate) - 1))
    >>> [refuted(one_gdp, canaries=1000, guesses=100, correct=each) for each in (98, 99)]
    [False, True]

    Args:
        curve: the claim; concave, and a bound for both values of a coin.
        canaries: m, the number of coins.
        guesses: c', fixed beforehand.
        correct: c, the number of right guesses.
        level: in (0, 1).

    Raises:
        ValueError: unless 0 <= correct <= guesses <= canaries.
    """
    check_counts(canaries, guesses, correct)
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
        canaries: m.
        guesses: c'.
        correct: c.
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

    See `refuted` for the arguments.
    """
    return fewest(lambda correct: refuted(curve, canaries, guesses, correct), guesses)
