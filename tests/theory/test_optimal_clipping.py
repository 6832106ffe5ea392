"""Optimal clipping bounds against brute force over C, with gradients that are written out."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.theory.test_gram import batch

from dpsweep.theory import (
    ClippedSums,
    PrivacyEffects,
    alignment,
    direction_optimal_clipping,
    mean_squared_error,
    mse_optimal_clipping,
)

SIGMAS = st.sampled_from([0.0, 0.01, 0.3, 1.0, 10.0, 300.0])
SEEDS = st.integers(0, 2**32 - 1)


def clipped_sum(gradients: np.ndarray, bound: float) -> np.ndarray:
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    return (gradients * np.minimum(1, bound / np.where(norms > 0, norms, 1))).sum(0)


def direct_mse(gradients: np.ndarray, bound: float, sigma: float) -> float:
    error = clipped_sum(gradients, bound) - gradients.sum(0)
    return bound**2 * sigma**2 * gradients.shape[1] + error @ error


def direct_alignment(gradients: np.ndarray, bound: float, sigma: float) -> float:
    found, wanted = clipped_sum(gradients, bound), gradients.sum(0)
    length = found @ found + bound**2 * sigma**2 * gradients.shape[1]
    return max(found @ wanted, 0) ** 2 / (length * (wanted @ wanted))


def grid(gradients: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(gradients, axis=1)
    positive = norms[norms > 0]
    return np.concatenate([np.geomspace(positive.min() / 1e3, 3 * positive.max(), 2000), positive])


@settings(max_examples=80)
@given(seed=SEEDS, examples=st.integers(2, 30), sigma=SIGMAS)
def test_error_and_alignment_are_those_of_the_written_out_sums(
    seed: int, examples: int, sigma: float
) -> None:
    gradients = batch(seed, examples)
    gram, bounds = gradients @ gradients.T, grid(gradients)[::37]
    errors = mean_squared_error(gram, bounds, sigma, 6).total
    aligned = alignment(gram, bounds, sigma, 6)
    scale = np.trace(gram) * examples
    for bound, error, value in zip(bounds, errors, aligned, strict=True):
        assert error == pytest.approx(
            direct_mse(gradients, bound, sigma), rel=1e-9, abs=1e-12 * scale
        )
        # Without noise, gradients that nearly cancel have a direction with few digits.
        assert value == pytest.approx(direct_alignment(gradients, bound, sigma), rel=1e-6, abs=1e-9)


@settings(max_examples=80)
@given(seed=SEEDS, examples=st.integers(1, 30), sigma=SIGMAS)
def test_no_bound_of_a_fine_grid_has_a_smaller_error(
    seed: int, examples: int, sigma: float
) -> None:
    gradients = batch(seed, examples + 1)
    best = mse_optimal_clipping(gradients @ gradients.T, sigma, 6)
    others = [direct_mse(gradients, bound, sigma) for bound in grid(gradients)]
    scale = (np.linalg.norm(gradients, axis=1).sum()) ** 2
    assert direct_mse(gradients, best, sigma) <= min(others) * (1 + 1e-9) + 1e-13 * scale


@settings(max_examples=80)
@given(seed=SEEDS, examples=st.integers(1, 30), sigma=SIGMAS)
def test_no_bound_of_a_fine_grid_has_a_better_direction(
    seed: int, examples: int, sigma: float
) -> None:
    gradients = batch(seed, examples + 1)
    best = direction_optimal_clipping(gradients @ gradients.T, sigma, 6)
    bounds = grid(gradients)
    others = np.array([direct_alignment(gradients, bound, sigma) for bound in bounds])
    assert best.alignment == pytest.approx(
        direct_alignment(gradients, best.clipping_bound, sigma), rel=1e-6
    )
    assert best.alignment >= others.max() * (1 - 1e-9)
    # Everywhere on the plateau R is within 2 % of its maximum, and right beside it no more.
    on = (bounds >= best.lower) & (bounds <= best.upper)
    assert (others[on] >= 0.98 * best.alignment * (1 - 1e-6)).all()
    for edge, beyond in ((best.lower, 1 - 1e-4), (best.upper, 1 + 1e-4)):
        if 0 < edge < np.inf:
            outside = direct_alignment(gradients, edge * beyond, sigma)
            assert outside <= 0.98 * best.alignment * (1 + 1e-9)


@pytest.mark.parametrize("sigma", [0.0, 0.5, 20.0])
def test_equal_gradients_have_a_closed_form(sigma: float) -> None:
    # N.G = B^2 n and N.N = B^2, so C* = B^2 n / (B^2 + sigma^2 d).
    examples, norm, dimension = 8, 3.0, 100
    gram = np.full((examples, examples), norm**2)
    wanted = examples**2 * norm / (examples**2 + sigma**2 * dimension)
    assert mse_optimal_clipping(gram, sigma, dimension) == pytest.approx(wanted, rel=1e-12)
    best = direction_optimal_clipping(gram, sigma, dimension)
    assert best.clipping_bound == norm
    assert best.lower == 0
    assert best.alignment == pytest.approx(
        examples**2 / (examples**2 + sigma**2 * dimension), rel=1e-12
    )


def test_one_example() -> None:
    gram = np.array([[9.0]])
    assert mse_optimal_clipping(gram, 0.0, 4) == 3
    assert mse_optimal_clipping(gram, 1.0, 4) == pytest.approx(3 / 5)
    assert direction_optimal_clipping(gram, 1.0, 4).clipping_bound == 3


def test_zero_gradients() -> None:
    gram = np.zeros((3, 3))
    assert mse_optimal_clipping(gram, 1.0, 4) == 0
    assert np.isnan(direction_optimal_clipping(gram, 1.0, 4).clipping_bound)
    assert np.isnan(alignment(gram, [1.0, 2.0], 1.0, 4)).all()
    assert mean_squared_error(gram, 2.0, 1.0, 4).total == 16


def test_gradients_that_cancel_are_best_left_out() -> None:
    gradients = np.array([[1.0, 0.0], [-1.0, 0.0]])
    assert mse_optimal_clipping(gradients @ gradients.T, 1.0, 2) == 0


def test_above_all_norms_only_noise_is_left_and_below_them_the_direction_is_the_same() -> None:
    gradients = batch(5)
    gram = gradients @ gradients.T
    above = 2 * np.linalg.norm(gradients, axis=1).max()
    error = mean_squared_error(gram, above, 1.5, 6)
    assert error.bias == 0
    assert error.noise == pytest.approx(above**2 * 1.5**2 * 6)
    small = alignment(gram, [0.0, 1e-9, 1e-6], 1.5, 6)
    assert small == pytest.approx(np.full(3, small[0]), rel=1e-9)


def test_without_noise_nothing_needs_to_be_clipped() -> None:
    gradients = batch(6)
    gram = gradients @ gradients.T
    best = mse_optimal_clipping(gram, 0.0, 6)
    assert best == pytest.approx(np.linalg.norm(gradients, axis=1).max())
    direction = direction_optimal_clipping(gram, 0.0, 6)
    assert direction.alignment == pytest.approx(1)
    assert direction.upper == np.inf


@pytest.mark.parametrize(
    ("sigma", "dimension", "bounds", "named"),
    [
        (-1.0, 3, 1.0, "noise multiplier"),
        (np.nan, 3, 1.0, "noise multiplier"),
        (1.0, 0, 1.0, "dimension"),
        (1.0, 3, -1.0, "clipping bounds"),
        (1.0, 3, np.inf, "clipping bounds"),
    ],
)
def test_arguments_out_of_range_are_named(
    sigma: float, dimension: int, bounds: float, named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        mean_squared_error(np.eye(2), bounds, sigma, dimension)


def test_effects_of_privacy_are_taken_apart() -> None:
    # Orthogonal gradients: N.G = B n and N.N = B, so C* = B n / (B + sigma^2 d).
    loose, tight = ClippedSums.of(4.0 * np.eye(5)), ClippedSums.of(100.0 * np.eye(5))
    effects = PrivacyEffects.of(mse_optimal_clipping, loose, tight, (1.0, 2.0), 10)
    assert effects.loose == pytest.approx(10 / 15)
    assert effects.direct == pytest.approx(10 / 45)
    assert effects.indirect == pytest.approx(50 / 15)
    assert effects.tight == pytest.approx(50 / 45)


def test_a_sum_that_points_away_from_the_gradient_is_not_aligned_with_it() -> None:
    # One long gradient against three short ones: clipped to equal length, the three win.
    gradients = np.array([[10.0], [-3.0], [-3.0], [-3.0]])
    gram = gradients @ gradients.T
    assert alignment(gram, 1.0, 0.1, 1) == 0
    assert direction_optimal_clipping(gram, 0.1, 1).lower > 9
