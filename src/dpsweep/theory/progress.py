"""Theorem 4.2: what a private step must gain, beside what it does gain.

For a loss that is L-smooth, a step of size eta <= 1/L along the clipped, noisy gradient changes it by at
most ``-eta/2 |g|^2 + eta/2 MSE(C)`` in expectation. Losses here are sums over the batch, as gradients
are in Theorem 4.1.

L is known for a linear head with softmax: the Hessian of one example is (diag(p) - p p^T) x x^T as a
Kronecker product, the first factor has no eigenvalue above 1/2, and so L is at most half the squared
largest singular value of the features.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpsweep.theory.gram import Array, softmax_gram
from dpsweep.theory.mse import checked_bounds, mean_squared_error
from dpsweep.theory.sums import ClippedSums


@dataclass(frozen=True)
class Progress:
    """The change of the summed loss by one private step, at each of some clipping bounds."""

    bound: Array
    """what Theorem 4.2 allows at most, in expectation"""
    measured: Array
    """mean over draws of the noise"""
    standard_error: Array
    """of that mean"""


def softmax_smoothness(features: npt.ArrayLike) -> float:
    """Return L of the summed cross entropy of a linear softmax head with bias.

    Args:
        features: shape (B, f); the constant feature of the bias is added here.
    """
    largest = np.linalg.norm(_with_bias(np.asarray(features, dtype=np.float64)), ord=2)
    return float(largest**2 / 2)


def progress_bound(
    gram: "npt.ArrayLike | ClippedSums",
    clipping_bounds: npt.ArrayLike,
    noise_multiplier: float,
    dimension: int,
    step_size: float,
) -> Array:
    """Return the largest expected change of the summed loss, at each of some clipping bounds.

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


def measured_progress(
    features: npt.ArrayLike,
    labels: npt.ArrayLike,
    weights: npt.ArrayLike,
    clipping_bounds: npt.ArrayLike,
    noise_multiplier: float,
    step_size: float | None = None,
    draws: int = 16,
    seed: int = 0,
) -> Progress:
    """Take private steps from one point, with a softmax head, and compare them with Theorem 4.2.

    Args:
        features: of the batch, shape (B, f).
        labels: class indices, shape (B,).
        weights: of the head before the step, bias in the last column, shape (classes, f + 1).
        clipping_bounds: C, shape (bounds,).
        noise_multiplier: sigma.
        step_size: eta, by default 1/L.
        draws: how often noise is drawn, the same for every bound.
        seed: of the noise.

    Raises:
        ValueError: a step size above 1/L, for which the theorem says nothing.
    """
    x = _with_bias(np.asarray(features, dtype=np.float64))
    y, head = np.asarray(labels), np.asarray(weights, dtype=np.float64)
    bounds = checked_bounds(clipping_bounds)
    limit = 1 / softmax_smoothness(x[:, :-1])
    step_size = limit if step_size is None else step_size
    if not 0 < step_size <= limit:
        raise ValueError(
            f"step size: found {step_size:g}; allowed: above 0, at most 1/L = {limit:g}"
        )
    before, residuals = _loss_and_residuals(x, y, head)
    norms = np.linalg.norm(x, axis=1) * np.linalg.norm(residuals, axis=1)
    generator = np.random.default_rng(seed)
    noises = [generator.standard_normal(head.shape) for _ in range(draws)]
    changes = np.zeros((len(bounds), draws))
    for place, bound in enumerate(bounds):
        factors = np.divide(bound, norms, out=np.ones_like(norms), where=norms > bound)
        clipped = (residuals * factors[:, None]).T @ x
        for draw, noise in enumerate(noises):
            step = clipped + bound * noise_multiplier * noise
            after, _ = _loss_and_residuals(x, y, head - step_size * step)
            changes[place, draw] = after - before
    return Progress(
        bound=progress_bound(
            softmax_gram(x[:, :-1], residuals), bounds, noise_multiplier, head.size, step_size
        ),
        measured=changes.mean(1),
        standard_error=changes.std(1, ddof=1) / np.sqrt(draws)
        if draws > 1
        else np.full(len(bounds), np.nan),
    )


def _with_bias(features: Array) -> Array:
    return np.concatenate([features, np.ones((len(features), 1))], axis=1)


def _loss_and_residuals(
    x: Array, labels: npt.NDArray[np.integer], head: Array
) -> tuple[float, Array]:
    """Return the summed cross entropy, and predicted probabilities minus one-hot labels."""
    logits = x @ head.T
    logits -= logits.max(1, keepdims=True)
    exponentials = np.exp(logits)
    totals = exponentials.sum(1)
    every = np.arange(len(x))
    loss = float((np.log(totals) - logits[every, labels]).sum())
    residuals = exponentials / totals[:, None]
    residuals[every, labels] -= 1
    return loss, residuals
