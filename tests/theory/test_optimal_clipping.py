"""Optimal clipping bounds, compared with brute force over C on explicit gradients."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsweep.theory import (
    ClippedSums,
    alignment,
    direction_optimal_clipping,
    mean_squared_error,
    mse_optimal_clipping,
)

SIGMAS = st.sampled_from([0.0, 0.01, 0.3, 1.0, 10.0, 300.0])
SEEDS = st.integers(0, 2**32 - 1)


def batch(seed: int, examples: int = 17, dimension: int = 6) -> np.ndarray:
    """Return correlated gradients of very different lengths, one of them zero."""
    generator = np.random.default_rng(seed)
    gradients = generator.normal(size=(examples, dimension)) + generator.normal(size=dimension)
    gradients *= 10 ** generator.uniform(-2, 2, size=(examples, 1))
    gradients[examples // 2] = 0
    return gradients


def clipped_sums(gradients: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Return the sum of clipped gradients for each bound, shape (bounds, d)."""
    norms = np.linalg.norm(gradients, axis=1)
    return np.minimum(1, bounds[:, None] / np.where(norms > 0, norms, 1)) @ gradients


def direct_mse(gradients: np.ndarray, bounds: Any, sigma: float) -> np.ndarray:
    bounds = np.atleast_1d(bounds)
    errors = clipped_sums(gradients, bounds) - gradients.sum(0)
    return bounds**2 * sigma**2 * gradients.shape[1] + (errors**2).sum(1)


def direct_alignment(gradients: np.ndarray, bounds: Any, sigma: float) -> np.ndarray:
    bounds = np.atleast_1d(bounds)
    found, wanted = clipped_sums(gradients, bounds), gradients.sum(0)
    lengths = (found**2).sum(1) + bounds**2 * sigma**2 * gradients.shape[1]
    return np.maximum(found @ wanted, 0) ** 2 / (lengths * (wanted @ wanted))


def grid(gradients: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(gradients, axis=1)
    positive = norms[norms > 0]
    return np.concatenate([np.geomspace(positive.min() / 1e3, 3 * positive.max(), 2000), positive])


@settings(max_examples=80)
@given(seed=SEEDS, examples=st.integers(2, 30), sigma=SIGMAS, block=st.integers(1, 40))
def test_error_and_alignment_equal_direct_computations(
    seed: int, examples: int, sigma: float, block: int
) -> None:
    gradients = batch(seed, examples)
    sums = ClippedSums.from_rows(lambda chosen: gradients[chosen], examples, block)
    bounds = grid(gradients)[::37]
    errors = mean_squared_error(sums, bounds, sigma, 6).total
    scale = (gradients**2).sum() * examples
    wanted = direct_mse(gradients, bounds, sigma)
    np.testing.assert_allclose(errors, wanted, rtol=1e-9, atol=1e-12 * scale)
    # Without noise, the direction of nearly cancelling gradients has few correct digits.
    aligned = alignment(sums, bounds, sigma, 6)
    wanted = direct_alignment(gradients, bounds, sigma)
    np.testing.assert_allclose(aligned, wanted, rtol=1e-6, atol=1e-9)


@settings(max_examples=80)
@given(seed=SEEDS, examples=st.integers(1, 30), sigma=SIGMAS)
def test_no_bound_of_a_fine_grid_has_a_smaller_error(
    seed: int, examples: int, sigma: float
) -> None:
    gradients = batch(seed, examples + 1)
    best = mse_optimal_clipping(gradients, sigma, 6)
    others = direct_mse(gradients, grid(gradients), sigma)
    scale = (np.linalg.norm(gradients, axis=1).sum()) ** 2
    assert direct_mse(gradients, best, sigma) <= others.min() * (1 + 1e-9) + 1e-13 * scale


@settings(max_examples=80)
@given(seed=SEEDS, examples=st.integers(1, 30), sigma=SIGMAS)
def test_no_bound_of_a_fine_grid_has_a_better_direction(
    seed: int, examples: int, sigma: float
) -> None:
    gradients = batch(seed, examples + 1)
    best = direction_optimal_clipping(gradients, sigma, 6)
    bounds = grid(gradients)
    others = direct_alignment(gradients, bounds, sigma)
    assert best.alignment == pytest.approx(
        direct_alignment(gradients, best.clipping_bound, sigma), rel=1e-6
    )
    assert best.alignment >= others.max() * (1 - 1e-9)
    # R is within 2 % of its maximum on the plateau, and not just outside it.
    on = (bounds >= best.lower) & (bounds <= best.upper)
    assert (others[on] >= 0.98 * best.alignment * (1 - 1e-6)).all()
    for edge, beyond in ((best.lower, 1 - 1e-4), (best.upper, 1 + 1e-4)):
        if 0 < edge < np.inf:
            outside = direct_alignment(gradients, edge * beyond, sigma)
            assert outside <= 0.98 * best.alignment * (1 + 1e-9)


def test_zero_or_cancelling_gradients_have_no_positive_optimum() -> None:
    zero = np.zeros((3, 4))
    assert mse_optimal_clipping(zero, 1.0, 4) == 0
    assert np.isnan(direction_optimal_clipping(zero, 1.0, 4).clipping_bound)
    assert np.isnan(alignment(zero, [1.0, 2.0], 1.0, 4)).all()
    assert mean_squared_error(zero, 2.0, 1.0, 4).total == 16
    cancelling = np.array([[1.0, 0.0], [-1.0, 0.0]])
    assert mse_optimal_clipping(cancelling, 1.0, 2) == 0


def test_a_sum_that_points_away_from_the_gradient_is_not_aligned_with_it() -> None:
    # One long gradient against three short ones: clipped to equal length, the three win.
    gradients = np.array([[10.0], [-3.0], [-3.0], [-3.0]])
    assert alignment(gradients, 1.0, 0.1, 1) == 0
    assert direction_optimal_clipping(gradients, 0.1, 1).lower > 9


def test_gradients_that_are_not_finite_are_refused() -> None:
    for wrong in (np.nan, np.inf):
        gradients = batch(2)
        gradients[3, 1] = wrong
        with np.errstate(invalid="ignore"), pytest.raises(ValueError, match="1 of 17 gradients"):
            ClippedSums.of(gradients)


def test_a_gradient_as_long_as_the_bound_is_not_clipped() -> None:
    sums = ClippedSums.of(np.diag([1.0, 2.0, 4.0]))
    bounds = np.array([0.5, 1.0, 2.0, 3.9, 4.0, 9.0])
    assert sums.unclipped(bounds).tolist() == [0, 1, 2, 2, 3, 3]
