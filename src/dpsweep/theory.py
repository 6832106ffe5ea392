"""The paper's theory of clipping (section 4), computed from measured per-example gradients.

Inputs and outputs are plain float64 arrays. None of this is private, because it reads raw gradients of the
training data. Use it to explain results on public data, not to choose C on private data.

**Sums.** A bound C divides the gradients into two groups: longer gradients are clipped, the others are not.
The formulas of the paper's section 4 need only inner products of three vectors: A, the sum of the unclipped
gradients; G, the sum of the clipped gradients; N, the sum of the clipped gradients' unit vectors. As C
grows, gradients become unclipped in the order of their norms. So four numbers per example determine these
inner products for every C.

**Error.** Theorem 4.1 of the paper. With noise multiplier sigma and d trainable parameters, the expected
squared distance between the noisy sum of clipped gradients and the sum of gradients of a batch is

    MSE(C) = C^2 sigma^2 d + |sum over clipped i of (1 - C / n_i) g_i|^2.

A smaller epsilon changes the best bound in two ways. The direct effect is more noise in every step. The
indirect effect is that training arrives at other gradients (the paper's explanation why larger bounds can be
better). `dpsweep.analysis.predictions.effects` separates them.

**Direction.** The scale of a step does not matter for Adam, or for any optimizer with a tuned learning rate.
If the step may be rescaled, the mean squared error becomes |g|^2 (1 - R(C)) with the alignment

    R(C) = (s . g)^2 / ((|s|^2 + C^2 sigma^2 d) |g|^2),    s = sum of min(1, C / n_i) g_i,  g = sum of g_i.

This is a squared cosine in which the squared length of the noisy sum is replaced by its expectation. If s
points away from g, R is 0, because a step against the gradient does not help.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

_BLOCK = 256  # gradients at a time
Rows = Callable[[npt.NDArray[np.int64]], npt.ArrayLike]
"""A function that returns the gradients of some examples, shape (examples, d)."""


@dataclass(frozen=True)
class ClippedSums:
    """The overlaps of the gradients of a batch: four numbers per example, in the order of the norms.

    >>> sums = ClippedSums.of([[3.0, 4.0], [1.0, 0.0]])
    >>> sums.norms, float(sums.total_square)
    (array([1., 5.]), 32.0)

    Zero gradients are left out, because they contribute nothing at any bound.

    Attributes:
        norms: ascending, positive, shape (b,).
        smaller: inner product with the sum of all gradients before it in this order, shape (b,).
        larger: with the sum of all gradients after it, shape (b,).
        larger_units: with the sum of the unit vectors of all gradients after it, shape (b,).
    """

    norms: Array
    smaller: Array
    larger: Array
    larger_units: Array

    @classmethod
    def of(cls, gradients: "npt.ArrayLike | ClippedSums") -> "ClippedSums":
        """Return the sums of gradients, shape (B, d); return `ClippedSums` unchanged.

        Raises:
            ValueError: gradients are not finite.
        """
        if isinstance(gradients, ClippedSums):
            return gradients
        rows = np.asarray(gradients)
        return cls.from_rows(lambda chosen: rows[chosen], len(rows), _BLOCK)

    @classmethod
    def from_rows(cls, rows: Rows, examples: int, block: int) -> Self:
        """Return the sums of gradients that are computed in blocks, each gradient twice.

        The first pass computes norms and totals. The second pass takes the examples in the order of their
        norms. Memory is that of two blocks and four gradients in float64.

        Args:
            rows: returns the gradients of some examples.
            examples: B.
            block: number of gradients per block.

        Raises:
            ValueError: gradients are not finite.
        """
        norms = np.zeros(examples)
        total = total_units = np.zeros(1)
        for first in range(0, examples, block):
            chosen = np.arange(first, min(first + block, examples))
            gradients = np.asarray(rows(chosen), dtype=np.float64)
            norms[chosen] = found = np.sqrt(np.einsum("ij,ij->i", gradients, gradients))
            finite(found)
            scale = np.divide(1, found, out=np.zeros_like(found), where=found > 0)
            total = total + gradients.sum(0)
            total_units = total_units + scale @ gradients
        order = np.argsort(norms, kind="stable")
        order = order[norms[order] > 0]
        parts = []
        before = before_units = np.zeros_like(total)
        for first in range(0, len(order), block):
            chosen = order[first : first + block]
            gradients = np.asarray(rows(chosen), dtype=np.float64)
            inner = np.tril(gradients @ gradients.T, -1)
            smaller = inner.sum(1) + gradients @ before
            smaller_units = (inner / norms[chosen]).sum(1) + gradients @ before_units
            larger = gradients @ total - smaller - norms[chosen] ** 2
            larger_units = gradients @ total_units - smaller_units - norms[chosen]
            parts.append(np.stack([norms[chosen], smaller, larger, larger_units]))
            before = before + gradients.sum(0)
            before_units = before_units + (1 / norms[chosen]) @ gradients
        return cls(*np.concatenate([np.zeros((4, 0)), *parts], axis=1))

    @property
    def total_square(self) -> float:
        """Squared norm of the sum of all gradients, |g|^2."""
        return float(max(self.unclipped_square[-1], 0.0))

    # Shape (b + 1,): entry k belongs to the bounds at which the k smallest gradients are unclipped.

    @cached_property
    def unclipped_square(self) -> Array:
        """A.A."""
        return _up(2 * self.smaller + self.norms**2)

    @cached_property
    def clipped_square(self) -> Array:
        """G.G."""
        return _down(2 * self.larger + self.norms**2)

    @cached_property
    def unit_square(self) -> Array:
        """N.N."""
        return _down(2 * self.larger_units / self.norms + 1)

    @cached_property
    def unit_clipped(self) -> Array:
        """N.G."""
        return _down(self.larger_units + self.larger / self.norms + self.norms)

    @cached_property
    def unclipped_unit(self) -> Array:
        """A.N."""
        found = _up(self.larger_units - self.smaller / self.norms)
        found[-1] = 0.0  # N is empty here: remove the rounding error
        return found

    @cached_property
    def unclipped_total(self) -> Array:
        """A.g, with g = A + G."""
        return _up(self._with_total)

    @cached_property
    def unit_total(self) -> Array:
        """N.g."""
        return _down(self._with_total / self.norms)

    @property
    def _with_total(self) -> Array:
        return self.smaller + self.norms**2 + self.larger

    def unclipped(self, bounds: Array) -> npt.NDArray[np.intp]:
        """Return how many gradients are not longer than each bound."""
        return np.searchsorted(self.norms, bounds, side="right")


def _up(steps: Array) -> Array:
    """Return the sums of the first k steps, k = 0, ..., b."""
    return np.concatenate([[0.0], np.cumsum(steps)])


def _down(steps: Array) -> Array:
    """Return the sums of all steps but the first k, k = 0, ..., b."""
    return np.concatenate([np.cumsum(steps[::-1])[::-1], [0.0]])


def finite(norms: Array) -> None:
    """Raise an error if gradients are not finite.

    Raises:
        ValueError: the message contains their number.
    """
    wrong = int((~np.isfinite(norms)).sum())
    if wrong:
        raise ValueError(
            f"{wrong} of {len(norms)} gradients are not finite; leave them out, as training does"
        )


Rule = Callable[[ClippedSums, float, int], float]
"""A function that returns the best clipping bound, for example `mse_optimal_clipping`."""


@dataclass(frozen=True)
class MeanSquaredError:
    """The two parts of a mean squared error, and their sum; shapes are those of the bounds."""

    noise: Array
    """C^2 sigma^2 d."""
    bias: Array
    """The squared norm of the difference that clipping makes to the sum."""

    @property
    def total(self) -> Array:
        """MSE(C)."""
        return self.noise + self.bias


def mean_squared_error(
    gradients: "npt.ArrayLike | ClippedSums",
    clipping_bounds: npt.ArrayLike,
    noise_multiplier: float,
    dimension: int,
) -> MeanSquaredError:
    """Return the error of the sum of a batch's clipped gradients, at several clipping bounds.

    >>> error = mean_squared_error([[2.0, 0.0], [0.0, 1.0]], [0.5, 2.0], noise_multiplier=0.1, dimension=10)
    >>> error.noise, error.bias
    (array([0.025, 0.4  ]), array([2.5, 0. ]))

    Args:
        gradients: of a batch, shape (B, d), or their `ClippedSums`.
        clipping_bounds: C, of any shape; not negative.
        noise_multiplier: sigma, noise per unit of C.
        dimension: d, the number of trainable parameters.

    Raises:
        ValueError: an argument is out of range.
    """
    sums, variance = ClippedSums.of(gradients), noise_variance(noise_multiplier, dimension)
    bounds = checked_bounds(clipping_bounds)
    count = sums.unclipped(bounds)
    bias = (
        sums.clipped_square[count]
        - 2 * bounds * sums.unit_clipped[count]
        + bounds**2 * sums.unit_square[count]
    )
    # A difference of large numbers may round below zero.
    return MeanSquaredError(bounds**2 * variance, np.maximum(bias, 0.0))


def mse_optimal_clipping(
    gradients: "npt.ArrayLike | ClippedSums", noise_multiplier: float, dimension: int
) -> float:
    """Return C*, the clipping bound with the smallest mean squared error (Theorem 4.1).

    >>> gradients = np.full((8, 100), 0.3)  # eight equal gradients of norm 3
    >>> round(mse_optimal_clipping(gradients, noise_multiplier=0.8, dimension=100), 6)
    1.5

    All candidates are compared: the norms, and the stationary point between two neighbouring norms,
    N.G / (N.N + sigma^2 d). The theorem searches between the smallest and the largest norm. Here C may
    also lie below all norms, where the minimum is under much noise.

    Args:
        gradients: of a batch, shape (B, d), or their `ClippedSums`.
        noise_multiplier: sigma; 0 means training without noise, where clipping at C* causes no error.
        dimension: d, the number of trainable parameters.

    Returns:
        C*, the smallest one on ties. 0 if no bound is better than a zero sum: all gradients are zero, or
        they cancel.

    Raises:
        ValueError: an argument is out of range.
    """
    sums, variance = ClippedSums.of(gradients), noise_variance(noise_multiplier, dimension)
    curvature = sums.unit_square[:-1] + variance
    stationary = np.divide(
        sums.unit_clipped[:-1], curvature, out=np.zeros_like(curvature), where=curvature > 0
    )
    candidates = np.sort(np.concatenate([[0.0], sums.norms, inside(sums, stationary)]))
    errors = mean_squared_error(sums, candidates, noise_multiplier, dimension).total
    return float(candidates[np.argmin(errors)])


def inside(sums: ClippedSums, points: Array) -> Array:
    """Return the points that lie in their own interval, between two neighbouring norms.

    Args:
        sums: of the batch.
        points: one for each interval below a norm, shape (b,).
    """
    lower = np.concatenate([[0.0], sums.norms[:-1]])
    return points[(points > lower) & (points < sums.norms)]


def noise_variance(noise_multiplier: float, dimension: int) -> float:
    """Return sigma^2 d, the expected squared norm of the noise at C = 1.

    Raises:
        ValueError: an argument is out of range.
    """
    if not (0 <= noise_multiplier < np.inf and dimension >= 1):
        raise ValueError(
            f"found noise multiplier {noise_multiplier} and dimension {dimension}; allowed: a finite number "
            "from 0, and a dimension from 1"
        )
    return noise_multiplier**2 * dimension


def checked_bounds(clipping_bounds: npt.ArrayLike) -> Array:
    """Return clipping bounds as float64.

    Raises:
        ValueError: one is negative or not finite.
    """
    bounds = np.asarray(clipping_bounds, dtype=np.float64)
    if not (np.isfinite(bounds) & (bounds >= 0)).all():
        raise ValueError("clipping bounds: found one that is negative or not finite")
    return bounds


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
    gradients: "npt.ArrayLike | ClippedSums",
    clipping_bounds: npt.ArrayLike,
    noise_multiplier: float,
    dimension: int,
) -> Array:
    """Return R(C) at several clipping bounds; at C = 0 its limit.

    >>> alignment([[2.0, 0.0], [0.0, 1.0]], [0.5, 2.0], noise_multiplier=0.1, dimension=10).round(3)
    array([0.857, 0.926])

    Args:
        gradients: of a batch, shape (B, d), or their `ClippedSums`.
        clipping_bounds: C, of any shape; not negative.
        noise_multiplier: sigma, noise per unit of C.
        dimension: d, the number of trainable parameters.

    Returns:
        In [0, 1]; NaN where the gradients add up to zero.

    Raises:
        ValueError: an argument is out of range.
    """
    sums, variance = ClippedSums.of(gradients), noise_variance(noise_multiplier, dimension)
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
    gradients: "npt.ArrayLike | ClippedSums", noise_multiplier: float, dimension: int
) -> DirectionOptimum:
    """Return the clipping bound that maximises R(C), and the range around it where R is nearly as large.

    >>> best = direction_optimal_clipping(np.ones((8, 9)), noise_multiplier=0.8, dimension=100)
    >>> best.clipping_bound, best.alignment  # eight equal gradients of norm 3
    (3.0, 0.5)

    Between two norms, R is the square of a linear function divided by a quadratic one. So its stationary
    point and the points where it crosses a level have closed forms.

    Args:
        gradients: of a batch, shape (B, d), or their `ClippedSums`.
        noise_multiplier: sigma.
        dimension: d, the number of trainable parameters.

    Raises:
        ValueError: an argument is out of range.
    """
    sums, variance = ClippedSums.of(gradients), noise_variance(noise_multiplier, dimension)
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
