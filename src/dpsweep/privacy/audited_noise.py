"""Two tests of the noise that a calibration claims, for an audit.

`dpsweep.privacy.guesses` tests only the claim of (epsilon, delta). Training claims more: T steps with noise
multiplier sigma and sampling rate q. `CurveOutcome` tests the trade-off curve of this mechanism by an attack,
without assumptions on the trainer. `MeasuredNoise` measures the noise in coordinates to which no example
contributes. It is far sharper, but it assumes normal noise that is independent between coordinates.

Both give an epsilon: the one for the most noise that they do not refute.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.stats import chi2

from dpsweep.privacy.accountants import pld_epsilon, pld_interval
from dpsweep.privacy.curve_guesses import curve_p_value, refuted
from dpsweep.privacy.gaussian import gaussian_epsilon
from dpsweep.privacy.record import Calibration
from dpsweep.privacy.trade_off import training_trade_off

Floats = npt.NDArray[np.float64]

LEAST_SHARE = 1 / 8
"""Smallest share of the claimed noise that the tests resolve; the bounds hold below it too."""
_MOST_SHARE = 64.0
_PRECISION = 1e-3


def epsilon_of(noise: Calibration, noise_multiplier: float) -> float:
    """Return epsilon of training with another noise multiplier: in closed form, or by PLD.

    Args:
        noise: gives the sampling rate, steps and delta; its epsilon sets the mesh of PLD.
        noise_multiplier: of the other noise.
    """
    if noise.sampling.full_batch:
        return gaussian_epsilon(noise.delta, noise_multiplier, noise.steps)
    interval = 4 * pld_interval(noise.epsilon, noise.steps)
    return pld_epsilon(noise_multiplier, noise.sampling_rate, noise.steps, noise.delta, interval)


@dataclass(frozen=True)
class CurveOutcome:
    """The outcome of guesses that test the trade-off curve.

    Attributes:
        noise: the claim.
        canaries: m.
        guesses: number of guessed coins; fixed before the run.
        correct: number of right guesses.
        confidence: the bounds hold with at least this probability.
    """

    noise: Calibration
    canaries: int
    guesses: int
    correct: int
    confidence: float = 0.95

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
