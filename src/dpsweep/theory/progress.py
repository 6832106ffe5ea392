"""Theorem 4.2: the guaranteed progress of a private step, and its measured progress.

Losses here are sums over the batch, like gradients in Theorem 4.1. If the loss is L-smooth, a step of size
eta along the clipped, noisy gradient changes the loss in expectation by at most

    -eta s.g + L eta^2 / 2 (|s|^2 + C^2 sigma^2 d),    s = sum of min(1, C / n_i) g_i,  g = sum of g_i.

Theorem 4.2 follows for eta <= 1/L: the change is at most ``eta/2 (MSE(C) - |g|^2)``. At eta = 1/L the two
bounds are equal. For smaller steps the theorem is weaker, because its noise term grows with eta instead of
eta^2. With the best eta for each C, the bound above is ``-R(C) |g|^2 / (2 L)``: it depends on the alignment
of `dpsweep.theory.direction`, not on the mean squared error.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpsweep.theory.direction import alignment, along_and_square
from dpsweep.theory.mse import checked_bounds, mean_squared_error, noise_variance
from dpsweep.theory.softmax import (
    loss_and_residuals,
    softmax_gram,
    softmax_residuals,
    softmax_smoothness,
    with_bias,
)
from dpsweep.theory.sums import Array, ClippedSums


@dataclass(frozen=True)
class MeasuredProgress:
    """The change of the summed loss by one private step, for each step size and clipping bound.

    Shapes are those of the step sizes followed by those of the bounds.
    """

    bound: Array
    """The largest expected change by Theorem 4.2; NaN for steps above 1/L, to which it does not apply."""
    measured: Array
    """The mean change over draws of the noise."""
    standard_error: Array
    """The standard error of that mean; NaN for one draw."""


def progress_bound(
    gram: "npt.ArrayLike | ClippedSums",
    clipping_bounds: npt.ArrayLike,
    noise_multiplier: float,
    dimension: int,
    step_size: float,
) -> Array:
    """Return the largest expected change of the summed loss, at several clipping bounds.

    >>> gram = [[4.0, 0.0], [0.0, 1.0]]
    >>> progress_bound(gram, [0.5, 2.0], noise_multiplier=0.1, dimension=10, step_size=0.1)
    array([-0.12375, -0.23   ])

    Args:
        gram: Gram matrix of the gradients, shape (B, B), or its `ClippedSums`.
        clipping_bounds: C, of any shape.
        noise_multiplier: sigma.
        dimension: d, the number of trainable parameters.
        step_size: eta, at most 1/L.
    """
    sums = ClippedSums.of(gram)
    error = mean_squared_error(sums, clipping_bounds, noise_multiplier, dimension).total
    bound: Array = step_size / 2 * (error - sums.total_square)
    return bound


def tuned_progress_bound(
    gram: "npt.ArrayLike | ClippedSums",
    clipping_bounds: npt.ArrayLike,
    noise_multiplier: float,
    dimension: int,
    smoothness: float,
) -> Array:
    """Return the largest expected change of the summed loss with the best step size of each bound.

    >>> tuned_progress_bound([[4.0, 0.0], [0.0, 1.0]], [0.5, 2.0], 0.1, dimension=10, smoothness=2.0).round(3)
    array([-1.071, -1.157])

    It is ``-R(C) |g|^2 / (2 L)``; see `best_step_size`.

    Args:
        gram: Gram matrix of the gradients, shape (B, B), or its `ClippedSums`.
        clipping_bounds: C, of any shape.
        noise_multiplier: sigma.
        dimension: d, the number of trainable parameters.
        smoothness: L of the summed loss.

    Raises:
        ValueError: an argument is out of range.
    """
    _check_smoothness(smoothness)
    sums = ClippedSums.of(gram)
    aligned = alignment(sums, clipping_bounds, noise_multiplier, dimension)
    bound: Array = -aligned * sums.total_square / (2 * smoothness)
    return bound


def best_step_size(
    gram: "npt.ArrayLike | ClippedSums",
    clipping_bounds: npt.ArrayLike,
    noise_multiplier: float,
    dimension: int,
    smoothness: float,
) -> Array:
    """Return the step size with the best bound on progress, s.g / (L (|s|^2 + C^2 sigma^2 d)).

    >>> best_step_size([[4.0, 0.0], [0.0, 1.0]], [1.0], noise_multiplier=0.0, dimension=10, smoothness=2.0)
    array([0.75])

    It may be above 1/L. It is 0 if the clipped sum points away from the gradient, because then no step is
    guaranteed to reduce the loss.

    Args:
        gram: Gram matrix of the gradients, shape (B, B), or its `ClippedSums`.
        clipping_bounds: C, positive, of any shape.
        noise_multiplier: sigma.
        dimension: d, the number of trainable parameters.
        smoothness: L of the summed loss.

    Raises:
        ValueError: an argument is out of range.
    """
    _check_smoothness(smoothness)
    bounds = checked_bounds(clipping_bounds)
    if not (bounds > 0).all():
        raise ValueError("clipping bounds: found 0; allowed: positive")
    variance = noise_variance(noise_multiplier, dimension)
    along, square = along_and_square(ClippedSums.of(gram), bounds, variance)
    wanted = np.maximum(along, 0) / smoothness
    found: Array = np.divide(wanted, square, out=np.zeros_like(wanted), where=square > 0)
    return found


def _check_smoothness(smoothness: float) -> None:
    if not 0 < smoothness < np.inf:
        raise ValueError(f"smoothness: found {smoothness}; allowed: above 0, finite")


def measured_progress(
    features: npt.ArrayLike,
    labels: npt.ArrayLike,
    weights: npt.ArrayLike,
    clipping_bounds: npt.ArrayLike,
    noise_multiplier: float,
    step_sizes: npt.ArrayLike | None = None,
    draws: int = 8,
    seed: int = 0,
) -> MeasuredProgress:
    """Take private steps of a softmax head from one point, and compare them with Theorem 4.2.

    >>> found = measured_progress([[1.0], [2.0]], [0, 1], np.zeros((2, 2)), [0.5, 5.0], noise_multiplier=0.0)
    >>> found.bound.round(3), found.measured.round(3)
    (array([-0.016, -0.073]), array([-0.019, -0.093]))

    Args:
        features: of the batch, shape (B, f).
        labels: class indices, shape (B,).
        weights: of the head before the step, bias in the last column, shape (classes, f + 1).
        clipping_bounds: C, shape (bounds,).
        noise_multiplier: sigma.
        step_sizes: eta, a number or shape (steps,); by default 1/L.
        draws: number of noise draws, the same for every bound and step. Each draw is used with both
            signs, which removes the linear part of its effect from the mean.
        seed: of the noise.

    Raises:
        ValueError: an argument is out of range.
    """
    head, bounds = np.asarray(weights, dtype=np.float64), checked_bounds(clipping_bounds)
    limit = 1 / softmax_smoothness(features)
    steps = np.asarray(limit if step_sizes is None else step_sizes, dtype=np.float64)
    if not ((steps > 0) & np.isfinite(steps)).all():
        raise ValueError("step sizes: found one that is not above 0, or not finite")
    gram = ClippedSums.of(softmax_gram(features, softmax_residuals(features, labels, head)))
    theorem = [
        progress_bound(gram, bounds, noise_multiplier, head.size, step)
        if step <= limit * (1 + 1e-9)
        else np.full(len(bounds), np.nan)
        for step in steps.flat
    ]
    x, y = with_bias(features), np.asarray(labels)
    generator = np.random.default_rng(seed)
    noises = [noise_multiplier * generator.standard_normal(head.shape) for _ in range(draws)]
    changes = _changes(x, y, head, bounds, steps.ravel(), noises)
    shape = (*steps.shape, len(bounds))
    spread = changes.std(0, ddof=1) if draws > 1 else np.full(changes.shape[1:], np.nan)
    return MeasuredProgress(
        bound=np.reshape(theorem, shape),
        measured=changes.mean(0).reshape(shape),
        standard_error=(spread / np.sqrt(draws)).reshape(shape),
    )


def _changes(
    x: Array,
    y: npt.NDArray[np.int64],
    head: Array,
    bounds: Array,
    steps: Array,
    noises: list[Array],
) -> Array:
    """Return the changes of the loss for each noise (in units of C), shape (noises, steps, bounds)."""
    logits = x @ head.T
    before, residuals = loss_and_residuals(logits, y)
    norms = np.linalg.norm(x, axis=1) * np.linalg.norm(residuals, axis=1)
    # The change of the logits is linear in the step.
    ahead = []
    for bound in bounds:
        factors = np.divide(bound, norms, out=np.ones_like(norms), where=norms > bound)
        ahead.append(x @ ((residuals * factors[:, None]).T @ x).T)
    changes = np.zeros((len(noises), len(steps), len(bounds)))
    for draw, each in enumerate(noises):
        noise = x @ each.T
        for place, bound in enumerate(bounds):
            for row, step in enumerate(steps):
                after = [
                    loss_and_residuals(logits - step * (ahead[place] + sign * bound * noise), y)[0]
                    for sign in (1, -1)
                ]
                changes[draw, row, place] = np.mean(after) - before
    return changes
