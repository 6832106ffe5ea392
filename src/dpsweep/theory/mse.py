"""The mean squared error of a clipped, noisy gradient sum, and the clipping bound that minimises it.

Theorem 4.1 of the paper. With noise multiplier sigma and d trainable parameters, the expected squared
distance between the noisy sum of clipped gradients and the sum of gradients of a batch is

    MSE(C) = C^2 sigma^2 d + |sum over clipped i of (1 - C / n_i) g_i|^2.

A smaller epsilon changes the best bound in two ways, which `PrivacyEffects` separates. The direct effect is
more noise in every step. The indirect effect is that training arrives at other gradients (the paper's
explanation why larger bounds can be better).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpsweep.theory.sums import Array, ClippedSums

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
    gram: "npt.ArrayLike | ClippedSums",
    clipping_bounds: npt.ArrayLike,
    noise_multiplier: float,
    dimension: int,
) -> MeanSquaredError:
    """Return the error of the sum of a batch's clipped gradients, at several clipping bounds.

    >>> error = mean_squared_error([[4.0, 0.0], [0.0, 1.0]], [0.5, 2.0], noise_multiplier=0.1, dimension=10)
    >>> error.noise, error.bias
    (array([0.025, 0.4  ]), array([2.5, 0. ]))

    Args:
        gram: Gram matrix of the gradients, shape (B, B), or its `ClippedSums`.
        clipping_bounds: C, of any shape; not negative.
        noise_multiplier: sigma, noise per unit of C.
        dimension: d, the number of trainable parameters.

    Raises:
        ValueError: an argument is out of range.
    """
    sums, variance = ClippedSums.of(gram), noise_variance(noise_multiplier, dimension)
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
    gram: "npt.ArrayLike | ClippedSums", noise_multiplier: float, dimension: int
) -> float:
    """Return C*, the clipping bound with the smallest mean squared error (Theorem 4.1).

    >>> gradients = np.full((8, 100), 0.3)  # eight equal gradients of norm 3
    >>> round(mse_optimal_clipping(gradients @ gradients.T, noise_multiplier=0.8, dimension=100), 6)
    1.5

    All candidates are compared: the norms, and the stationary point between two neighbouring norms,
    N.G / (N.N + sigma^2 d). The theorem searches between the smallest and the largest norm. Here C may
    also lie below all norms, where the minimum is under much noise.

    Args:
        gram: Gram matrix of the gradients, shape (B, B), or its `ClippedSums`.
        noise_multiplier: sigma; 0 means training without noise, where clipping at C* causes no error.
        dimension: d, the number of trainable parameters.

    Returns:
        C*, the smallest one on ties. 0 if no bound is better than a zero sum: all gradients are zero, or
        they cancel.

    Raises:
        ValueError: an argument is out of range.
    """
    sums, variance = ClippedSums.of(gram), noise_variance(noise_multiplier, dimension)
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
    if not 0 <= noise_multiplier < np.inf:
        raise ValueError(f"noise multiplier: found {noise_multiplier}; allowed: 0 or more, finite")
    if dimension < 1:
        raise ValueError(f"dimension: found {dimension}; allowed: 1 or more")
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
class PrivacyEffects:
    """The best clipping bounds for the gradients and the noise of two epsilons, in all combinations.

    Attributes:
        loose: gradients and noise of the large epsilon.
        direct: gradients of the large epsilon, noise of the small one.
        indirect: gradients of the small epsilon, noise of the large one.
        tight: gradients and noise of the small epsilon.
    """

    loose: float
    direct: float
    indirect: float
    tight: float

    @classmethod
    def of(
        cls,
        rule: Rule,
        loose: ClippedSums,
        tight: ClippedSums,
        noise_multipliers: tuple[float, float],
        dimension: int,
    ) -> "PrivacyEffects":
        """Apply a rule to gradients and noise of two epsilons.

        >>> loose, tight = ClippedSums.of(4.0 * np.eye(5)), ClippedSums.of(100.0 * np.eye(5))
        >>> effects = PrivacyEffects.of(mse_optimal_clipping, loose, tight, (1.0, 2.0), dimension=10)
        >>> f"{effects.direct:.2f} {effects.indirect:.2f}"
        '0.22 3.33'

        Args:
            rule: returns the best bound for gradients and noise.
            loose: gradients of a training with the large epsilon.
            tight: gradients of a training with the small one, for batches of the same size.
            noise_multipliers: sigma of the large epsilon and of the small one.
            dimension: d, the number of trainable parameters.
        """
        little, much = noise_multipliers
        return cls(
            loose=rule(loose, little, dimension),
            direct=rule(loose, much, dimension),
            indirect=rule(tight, little, dimension),
            tight=rule(tight, much, dimension),
        )
