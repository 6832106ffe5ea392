"""The alignment of the noisy clipped sum with the gradient, and the clipping bound that maximises it.

The scale of a step does not matter for Adam, or for any optimizer with a tuned learning rate. If the step
may be rescaled, the mean squared error becomes |g|^2 (1 - R(C)) with the alignment

    R(C) = (s . g)^2 / ((|s|^2 + C^2 sigma^2 d) |g|^2),    s = sum of min(1, C / n_i) g_i,  g = sum of g_i.

This is a squared cosine in which the squared length of the noisy sum is replaced by its expectation. If s
points away from g, R is 0, because a step against the gradient does not help.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpsweep.theory.mse import checked_bounds, inside, noise_variance
from dpsweep.theory.sums import Array, ClippedSums


@dataclass(frozen=True)
class DirectionOptimum:
    """The clipping bound with the largest alignment; all values are NaN if the gradients sum to zero."""

    clipping_bound: float
    alignment: float
    """R at this bound, in [0, 1]."""
    lower: float
    """Where the plateau begins, on which R is within 2 % of its maximum; 0 if it has no lower end."""
    upper: float
    """Where the plateau ends; infinity if it has no upper end."""


def alignment(
    gram: "npt.ArrayLike | ClippedSums",
    clipping_bounds: npt.ArrayLike,
    noise_multiplier: float,
    dimension: int,
) -> Array:
    """Return R(C) at several clipping bounds; at C = 0 its limit.

    >>> alignment([[4.0, 0.0], [0.0, 1.0]], [0.5, 2.0], noise_multiplier=0.1, dimension=10).round(3)
    array([0.857, 0.926])

    Args:
        gram: Gram matrix of the gradients, shape (B, B), or its `ClippedSums`.
        clipping_bounds: C, of any shape; not negative.
        noise_multiplier: sigma, noise per unit of C.
        dimension: d, the number of trainable parameters.

    Returns:
        In [0, 1]; NaN where the gradients add up to zero.

    Raises:
        ValueError: an argument is out of range.
    """
    sums, variance = ClippedSums.of(gram), noise_variance(noise_multiplier, dimension)
    bounds = checked_bounds(clipping_bounds)
    if not len(sums.norms):
        return np.full(bounds.shape, np.nan)
    # Below the smallest norm R is constant.
    used = np.where(bounds == 0, sums.norms[0] / 2, bounds)
    along, square = along_and_square(sums, used, variance)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.maximum(along, 0) ** 2 / (square * sums.total_square)
    # Without noise, clipped gradients may cancel exactly: then there is no direction.
    found = np.where(square > 0, found, 0.0 if sums.total_square > 0 else np.nan)
    clipped: Array = np.minimum(found, 1.0)
    return clipped


def along_and_square(sums: ClippedSums, bounds: Array, variance: float) -> tuple[Array, Array]:
    """Return s.g and the expected squared norm of the noisy sum, |s|^2 + C^2 sigma^2 d.

    Args:
        sums: of the batch.
        bounds: C.
        variance: sigma^2 d.
    """
    count = sums.unclipped(bounds)
    along = sums.unclipped_total[count] + bounds * sums.unit_total[count]
    square = (
        sums.unclipped_square[count]
        + 2 * bounds * sums.unclipped_unit[count]
        + bounds**2 * (sums.unit_square[count] + variance)
    )
    return along, square


def direction_optimal_clipping(
    gram: "npt.ArrayLike | ClippedSums", noise_multiplier: float, dimension: int
) -> DirectionOptimum:
    """Return the clipping bound that maximises R(C), and the range around it where R is nearly as large.

    >>> best = direction_optimal_clipping(9 * np.ones((8, 8)), noise_multiplier=0.8, dimension=100)
    >>> best.clipping_bound, best.alignment  # eight equal gradients of norm 3
    (3.0, 0.5)

    Between two norms, R is the square of a linear function divided by a quadratic one. So its stationary
    point and the points where it crosses a level have closed forms.

    Args:
        gram: Gram matrix of the gradients, shape (B, B), or its `ClippedSums`.
        noise_multiplier: sigma.
        dimension: d, the number of trainable parameters.

    Raises:
        ValueError: an argument is out of range.
    """
    sums, variance = ClippedSums.of(gram), noise_variance(noise_multiplier, dimension)
    if not sums.total_square > 0:
        return DirectionOptimum(np.nan, np.nan, np.nan, np.nan)
    # R |g|^2 = (a + b C)^2 / (c + 2 e C + f C^2) in each interval; the last one is unbounded.
    a, b = sums.unclipped_total, sums.unit_total
    c, e, f = sums.unclipped_square, sums.unclipped_unit, sums.unit_square + variance
    slope = b * e - a * f
    stationary = np.divide(a * e - b * c, slope, out=np.zeros_like(slope), where=slope != 0)
    candidates = np.sort(np.concatenate([sums.norms, inside(sums, stationary[:-1])]))
    values = alignment(sums, candidates, noise_multiplier, dimension)
    best = int(np.argmax(values))
    bound, highest = float(candidates[best]), float(values[best])
    tolerance = 0.02  # relative loss of R that is allowed on the plateau
    level = (1 - tolerance) * highest * sums.total_square
    crossings = _crossings(sums, b**2 - level * f, a * b - level * e, a**2 - level * c)
    # R is continuous, so on each side the plateau ends at the nearest point where R equals the level.
    # If a side has no such point, the plateau extends to zero or to infinity.
    below, above = crossings[crossings < bound], crossings[crossings > bound]
    return DirectionOptimum(
        bound,
        highest,
        float(below.max()) if len(below) else 0.0,
        float(above.min()) if len(above) else np.inf,
    )


def _crossings(sums: ClippedSums, square: Array, half: Array, constant: Array) -> Array:
    """Return the zeros of ``square C^2 + 2 half C + constant`` that lie in their own interval."""
    lower = np.concatenate([[0.0], sums.norms])
    upper = np.concatenate([sums.norms, [np.inf]])
    with np.errstate(divide="ignore", invalid="ignore"):
        root = np.sqrt(half**2 - square * constant)
        # A numerically stable form of both roots.
        sign = np.where(half < 0, -1.0, 1.0)
        pivot = -(half + sign * root)
        roots = np.stack([pivot / square, constant / pivot])
    within = (roots > lower) & (roots <= upper) & np.isfinite(roots)
    return np.sort(roots[within])
