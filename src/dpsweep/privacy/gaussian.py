"""The analytic Gaussian mechanism: exact privacy of training on the full batch.

Every step of full-batch training (sampling rate 1) is a Gaussian mechanism of sensitivity 1, and T
of them with noise multiplier sigma are one with sigma / sqrt(T). Its privacy curve is known in
closed form (Balle and Wang 2018, "Improving the Gaussian Mechanism for Differential Privacy",
theorem 8) and is the same for adding and for removing an example.

The second part bounds the privacy that is lost if a noise generator has no tails. A generator that
transforms uniform numbers of k bits by Box and Muller's method draws pairs inside a disc: their squared
length is at most 2 k ln 2. With such noise, a step has outcomes that are possible with a certain example
and impossible without it. Such an outcome reveals the example, so its probability is a lower bound on
delta *at every epsilon*.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats
from scipy.optimize import brentq
from scipy.special import log_ndtr

from dpsweep.privacy.record import Calibration, CalibrationError

_RELATIVE_TOLERANCE = 1e-13
# Far wider than any real setting; no intermediate value overflows or underflows inside it.
_LOG_SIGMA_RANGE = (math.log(1e-4), math.log(1e9))


def gaussian_delta(epsilon: float, noise_multiplier: float, steps: int = 1) -> float:
    """Return the smallest delta for which full-batch training is (epsilon, delta)-DP.

    >>> f"{gaussian_delta(epsilon=1.0, noise_multiplier=3.73):.2g}"
    '1e-05'

    Args:
        epsilon: at least 0.
        noise_multiplier: standard deviation of the noise over the sensitivity, per step.
        steps: number of steps that are composed.
    """
    sigma = noise_multiplier / math.sqrt(steps)
    upper = log_ndtr(0.5 / sigma - epsilon * sigma)
    lower = epsilon + log_ndtr(-0.5 / sigma - epsilon * sigma)
    # Phi(a) - e^epsilon Phi(b), as one product because exp(epsilon) alone would overflow.
    return float(-math.exp(upper) * math.expm1(min(lower - upper, 0.0)))


def gaussian_epsilon(delta: float, noise_multiplier: float, steps: int = 1) -> float:
    """Return the smallest epsilon >= 0 for which full-batch training is (epsilon, delta)-DP.

    >>> f"{gaussian_epsilon(delta=1e-5, noise_multiplier=3.73):.3f}"
    '1.000'
    """
    if gaussian_delta(0.0, noise_multiplier, steps) <= delta:
        return 0.0

    def excess(epsilon: float) -> float:
        return math.log(max(gaussian_delta(epsilon, noise_multiplier, steps), 1e-300) / delta)

    upper = 1.0
    while excess(upper) > 0:
        upper *= 2
    return float(brentq(excess, 0.0, upper, xtol=1e-300, rtol=_RELATIVE_TOLERANCE))


def gaussian_noise_multiplier(epsilon: float, delta: float, steps: int = 1) -> float:
    """Return the smallest noise multiplier for which full-batch training is (epsilon, delta)-DP.

    >>> f"{gaussian_noise_multiplier(epsilon=1.0, delta=1e-5):.3f}"
    '3.731'

    Raises:
        CalibrationError: the target is too extreme for floating point.
    """

    def excess(log_sigma: float) -> float:
        return math.log(max(gaussian_delta(epsilon, math.exp(log_sigma)), 1e-300) / delta)

    lower, upper = _LOG_SIGMA_RANGE
    if not excess(lower) > 0 > excess(upper):
        raise CalibrationError(
            f"epsilon = {epsilon}, delta = {delta} needs a noise multiplier outside "
            f"[{math.exp(lower):.0e}, {math.exp(upper):.0e}] per full-batch step: choose a target "
            "nearer to common practice"
        )
    log_sigma = brentq(excess, lower, upper, xtol=1e-14, rtol=_RELATIVE_TOLERANCE)
    sigma = math.exp(log_sigma) * math.sqrt(steps)
    # Rounding may have put the root on either side: move it to the private side.
    margin = _RELATIVE_TOLERANCE
    while gaussian_epsilon(delta, sigma, steps) > epsilon:
        sigma *= 1 + margin
        margin *= 2
    return sigma


@dataclass(frozen=True)
class NoiseGenerator:
    """A generator of normal random numbers.

    Attributes:
        name: library, type and device.
        radius: the largest possible length of a pair of numbers.
        used: whether dpsweep trains with it.
    """

    name: str
    radius: float
    used: bool


def box_muller_radius(bits: float) -> float:
    """Return the largest length of a pair made from uniform numbers of at least 2^-bits."""
    return math.sqrt(2 * bits * math.log(2))


# numpy's ziggurat draws numbers above r as r - ln(U)/r and accepts x - r if it is at most
# sqrt(-2 ln U'), for U and U' of 53 bits. This bounds one number; the bound of a pair is at least as large.
_ZIGGURAT_START = 3.6541528853610088
_ZIGGURAT_RADIUS = _ZIGGURAT_START + box_muller_radius(53)

GENERATORS = (
    NoiseGenerator("numpy Philox, float64 (dpsweep, CPU)", _ZIGGURAT_RADIUS, used=True),
    # Two draws are added, so pairs of the sum are longer. Beyond the radius of one draw, their density
    # is below the normal density, so the bound for the sum must start there.
    NoiseGenerator("torch, float64, sum of two (dpsweep, CUDA)", box_muller_radius(54), used=True),
    NoiseGenerator("torch.randn, float32, CPU", box_muller_radius(24), used=False),
    NoiseGenerator("torch.randn, float32, CUDA", box_muller_radius(33), used=False),
)


def outside_probability(shift: float, radius: float) -> float:
    """Return the probability that two normal numbers with mean (shift, 0) lie outside a disc.

    Their squared length has a noncentral chi-square distribution with two degrees of freedom.

    Args:
        shift: distance of the mean from the centre, at least 0.
        radius: of the disc, at least 0.
    """
    return float(stats.ncx2.sf(radius**2, 2, shift**2))


def tail_delta(noise_multiplier: float, sampling_rate: float, steps: int, radius: float) -> float:
    """Return the delta, at every epsilon, that is lost because noise stays inside a disc.

    >>> f"{tail_delta(0.44, 256 / 87002, steps=680, radius=box_muller_radius(24)):.1e}"
    '7.8e-04'

    The worst example has a gradient along one coordinate. A step with it has an outcome outside the
    disc with probability q p, where p is the probability for a normal pair with mean 1/sigma. At least
    one of T steps has such an outcome with probability ``1 - (1 - q p)^T``.

    Args:
        noise_multiplier: sigma.
        sampling_rate: q.
        steps: T.
        radius: of the generator.
    """
    outside = sampling_rate * outside_probability(1 / noise_multiplier, radius)
    return float(-np.expm1(steps * np.log1p(-outside))) if outside < 1 else 1.0


TOLERATED = 1e-3
"""The largest allowed cost of a generator, as a share of delta."""


def tail_costs(calibrations: Sequence[Calibration]) -> Iterator[str]:
    """Yield a headline, and one line with the cost of every generator.

    Raises:
        CalibrationError: at the end, if dpsweep uses a generator that costs more than `TOLERATED`.
    """
    yield f"{len(calibrations)} calibrations; delta that missing tails alone cost:"
    refused = []
    for generator in GENERATORS:
        shares = [
            tail_delta(each.noise_multiplier, each.sampling_rate, each.steps, generator.radius)
            / each.delta
            for each in calibrations
        ]
        above, broken = (sum(share > most for share in shares) for most in (TOLERATED, 1))
        yield (
            f"  {generator.name}, up to {generator.radius:.2f}: at most {max(shares, default=0):.2g} of "
            f"delta; above {TOLERATED:g} of it in {above}, above all of it in {broken}"
        )
        if generator.used and above:
            refused.append(generator.name)
    if refused:
        raise CalibrationError(
            f"{' and '.join(refused)}: found a cost of more than {TOLERATED:g} of delta; allowed: a larger "
            "noise multiplier (smaller epsilon, or fewer epochs)"
        )
