"""What is lost where a noise generator has no tails.

A generator that transforms uniform numbers of k bits by Box and Muller's method draws pairs inside
a disc: their squared length is at most 2 k ln 2. With such noise a step has outcomes that are
possible with a certain example and impossible without it. Whoever sees one knows, so the
probability of seeing one is a lower bound on delta *at every epsilon*.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats


@dataclass(frozen=True)
class NoiseGenerator:
    """A way of drawing normal numbers.

    Attributes:
        name: library, type and device.
        radius: the length that a pair of numbers cannot exceed.
        used: whether dpsweep trains with it.
    """

    name: str
    radius: float
    used: bool


def box_muller_radius(bits: float) -> float:
    """Return the largest length of a pair from uniform numbers that are at least 2^-bits."""
    return math.sqrt(2 * bits * math.log(2))


# numpy's ziggurat draws numbers above r as r - ln(U)/r and accepts x - r if it is at most
# sqrt(-2 ln U'), for U and U' of 53 bits. The bound is one number's, and a pair's is no smaller.
_ZIGGURAT_START = 3.6541528853610088
_ZIGGURAT_RADIUS = _ZIGGURAT_START + box_muller_radius(53)

GENERATORS = (
    NoiseGenerator("numpy Philox, float64 (dpsweep, CPU)", _ZIGGURAT_RADIUS, used=True),
    # Two draws are added, and pairs of the sum are longer. Beyond the radius of one draw their
    # density falls below that of a normal, so this is where the bound for the sum must begin.
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
    """Return the delta, at every epsilon, that noise within a disc costs.

    The worst example has a gradient along one coordinate. A step with it has an outcome outside of
    the disc with probability q p, where p is that of a normal pair with mean 1/sigma, so among T
    steps there is one with probability ``1 - (1 - q p)^T``.

    Args:
        noise_multiplier: sigma.
        sampling_rate: q.
        steps: T.
        radius: of the generator.
    """
    outside = sampling_rate * outside_probability(1 / noise_multiplier, radius)
    return float(-np.expm1(steps * np.log1p(-outside))) if outside < 1 else 1.0
