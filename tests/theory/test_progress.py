"""Theorem 4.2 and its tuned form, compared with explicit steps."""

import itertools

import numpy as np
import pytest

from dpsweep.theory import (
    best_step_size,
    measured_progress,
    progress_bound,
    smallest_softmax_loss,
    softmax_gradient_deviation,
    softmax_gram,
    softmax_residuals,
    softmax_smoothness,
    tuned_progress_bound,
)


def problem(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return features, labels and weights of a head with three classes."""
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(60, 8))
    labels = (features[:, 0] + generator.normal(size=60) > 0).astype(int)
    return features, labels, generator.normal(size=(3, 9)) / 3


def summed_loss(features: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> float:
    """Return the summed cross entropy, computed one example at a time."""
    total = 0.0
    for x, label in zip(features, labels, strict=True):
        logits = [weight[:-1] @ x + weight[-1] for weight in weights]
        total += np.log(sum(np.exp(logit) for logit in logits)) - logits[label]
    return total


def clipped_sum(
    features: np.ndarray, labels: np.ndarray, weights: np.ndarray, bound: float
) -> np.ndarray:
    """Return the sum of the head's clipped gradients, computed one example at a time."""
    total = np.zeros_like(weights)
    for x, label in zip(features, labels, strict=True):
        logits = np.array([weight[:-1] @ x + weight[-1] for weight in weights])
        residual = np.exp(logits) / np.exp(logits).sum() - np.eye(len(weights))[label]
        gradient = np.outer(residual, [*x, 1.0])
        total += gradient * min(1.0, bound / np.linalg.norm(gradient))
    return total


def test_measured_steps_equal_direct_computations() -> None:
    data, head = problem(1)[:2], problem(1)[2]
    bounds, steps, sigma = [0.4, 1.5], [0.002, 0.03], 0.7
    found = measured_progress(*data, head, bounds, sigma, steps, draws=3, seed=5)
    generator = np.random.default_rng(5)
    noises = [sigma * generator.standard_normal(head.shape) for _ in range(3)]
    for place, (step, bound) in enumerate(itertools.product(steps, bounds)):
        clipped = clipped_sum(*data, head, bound)
        # Each draw is used with both signs.
        after = [
            [summed_loss(*data, head - step * (clipped + bound * each)) for each in (noise, -noise)]
            for noise in noises
        ]
        changes = np.mean(after, axis=1) - summed_loss(*data, head)
        assert found.measured.flat[place] == pytest.approx(changes.mean(), rel=1e-9)
        error = changes.std(ddof=1) / 3**0.5
        assert found.standard_error.flat[place] == pytest.approx(error, rel=1e-6)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("sigma", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("part", [1.0, 0.1])
def test_measured_steps_keep_the_bound(seed: int, sigma: float, part: float) -> None:
    bounds = np.array([0.01, 0.3, 1.0, 3.0, 30.0])
    features, labels, head = problem(seed)
    step = part / softmax_smoothness(features)
    found = measured_progress(features, labels, head, bounds, sigma, step, draws=64)
    slack = 4 * found.standard_error
    assert (found.measured <= found.bound + slack).all()
    # Without clipping and noise, the bound is within a factor of 4.
    if sigma == 0:
        assert found.measured[-1] < found.bound[-1] < found.measured[-1] / 4 < 0


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("sigma", [0.0, 0.1, 1.0])
def test_the_tuned_bound_is_the_minimum_over_step_sizes(seed: int, sigma: float) -> None:
    features, labels, head = problem(seed)
    smoothness = softmax_smoothness(features)
    residuals = softmax_residuals(features, labels, head)
    gram, gradient = softmax_gram(features, residuals), clipped_sum(features, labels, head, np.inf)
    for bound in (0.01, 0.3, 1.0, 3.0, 30.0):
        tuned = float(tuned_progress_bound(gram, bound, sigma, head.size, smoothness))
        clipped = clipped_sum(features, labels, head, bound)
        length = (clipped**2).sum() + bound**2 * sigma**2 * head.size
        steps = np.geomspace(1e-3, 1e3, 4001) / smoothness
        best = (-steps * (clipped * gradient).sum() + smoothness * steps**2 / 2 * length).min()
        assert tuned == pytest.approx(best, rel=1e-4)
        step = float(best_step_size(gram, bound, sigma, head.size, smoothness))
        assert step == pytest.approx((clipped * gradient).sum() / (smoothness * length))
        found = measured_progress(features, labels, head, [bound], sigma, step, draws=64)
        assert found.measured[0] <= tuned + 4 * found.standard_error[0]


@pytest.mark.parametrize("sigma", [0.0, 0.3])
def test_theorem_is_exact_at_a_full_step_and_weaker_than_its_tuned_form(sigma: float) -> None:
    features, labels, head = problem(2)
    smoothness = softmax_smoothness(features)
    gram = softmax_gram(features, softmax_residuals(features, labels, head))
    gradient = clipped_sum(features, labels, head, np.inf)
    for bound in np.geomspace(1e-3, 30, 12):
        clipped = clipped_sum(features, labels, head, bound)
        length = (clipped**2).sum() + bound**2 * sigma**2 * head.size
        full = (-(clipped * gradient).sum() + length / 2) / smoothness
        theorem = progress_bound(gram, bound, sigma, head.size, 1 / smoothness)
        assert theorem == pytest.approx(full, rel=1e-9)
        tuned = tuned_progress_bound(gram, bound, sigma, head.size, smoothness)
        assert tuned <= theorem + 1e-12


def test_the_bound_is_nan_for_steps_above_one_over_l() -> None:
    features, labels, head = problem(0)
    limit = 1 / softmax_smoothness(features)
    found = measured_progress(features, labels, head, [1.0], 1.0, [limit, 2 * limit], draws=1)
    assert np.isnan(found.bound).tolist() == [[False], [True]]
    assert np.isfinite(found.measured).all()
    assert np.isnan(found.standard_error).all()


def test_the_best_step_along_a_sum_that_points_backwards_is_zero() -> None:
    gradients = np.array([[10.0], [-3.0], [-3.0], [-3.0]])
    found = best_step_size(gradients @ gradients.T, [1.0, 10.0], 0.1, 1, 2.0)
    assert found[0] == 0
    assert found[1] > 0
    with pytest.raises(ValueError, match="clipping bounds"):
        best_step_size(gradients @ gradients.T, [0.0], 0.1, 1, 2.0)


@pytest.mark.parametrize("wrong", [0.0, -1.0, np.inf, np.nan])
def test_step_sizes_out_of_range_are_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="step sizes"):
        measured_progress(*problem(0), [1.0], 1.0, step_sizes=wrong)
    with pytest.raises(ValueError, match="smoothness"):
        tuned_progress_bound(np.eye(2), 1.0, 1.0, 2, wrong)


# -- the constants of a linear head with softmax -------------------------------------------------


def gradients(features: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the gradient of each example, shape (B, d)."""
    return np.stack(
        [
            clipped_sum(features[[row]], labels[[row]], weights, np.inf).ravel()
            for row in range(len(labels))
        ]
    )


def test_gram_matrix_and_deviation_equal_those_of_explicit_gradients() -> None:
    features, labels, head = problem(1)
    every = gradients(features, labels, head)
    found = softmax_gram(features, softmax_residuals(features, labels, head))
    np.testing.assert_allclose(found, every @ every.T, atol=1e-12)
    wanted = np.sqrt(((every - every.mean(0)) ** 2).sum(1).mean())
    assert softmax_gradient_deviation(features, labels, head) == pytest.approx(wanted, rel=1e-10)
    same = np.repeat(features[:1], 4, axis=0), np.repeat(labels[:1], 4), head
    assert softmax_gradient_deviation(*same) == pytest.approx(0, abs=1e-6)


def test_explicit_gradients_are_derivatives_of_the_loss() -> None:
    features, labels, head = problem(2)
    direction = np.random.default_rng(2).normal(size=head.shape)
    ahead, behind = (
        summed_loss(features, labels, head + size * direction) for size in (1e-5, -1e-5)
    )
    slope = (clipped_sum(features, labels, head, np.inf) * direction).sum()
    assert (ahead - behind) / 2e-5 == pytest.approx(slope, rel=1e-7)


@pytest.mark.parametrize("seed", range(5))
def test_the_smoothness_bounds_the_change_of_gradients(seed: int) -> None:
    features, labels, head = problem(seed)
    smoothness = softmax_smoothness(features)
    generator = np.random.default_rng(seed)
    for size in (1e-6, 1e-2, 1.0):
        other = head + size * generator.normal(size=head.shape)
        first, second = (clipped_sum(features, labels, each, np.inf) for each in (head, other))
        assert np.linalg.norm(first - second) <= smoothness * np.linalg.norm(head - other)


def test_smoothness_is_attained_for_two_equally_likely_classes() -> None:
    # One example, two classes, zero weights: the Hessian's largest eigenvalue is 1/2 |x|^2.
    features, label, size = np.array([[3.0, 4.0]]), np.array([0]), 1e-5
    step = size * np.array([[3.0, 4.0, 1.0], [-3.0, -4.0, -1.0]])
    first, second = (
        clipped_sum(features, label, each, np.inf) for each in (np.zeros((2, 3)), step)
    )
    found = np.linalg.norm(first - second) / np.linalg.norm(step)
    assert found == pytest.approx(softmax_smoothness(features), rel=1e-6)
    assert softmax_smoothness(features) == pytest.approx(13)


def test_smallest_loss_with_zero_features_is_the_entropy_of_the_labels() -> None:
    # Only the bias is trained, so the loss is the entropy of the labels.
    labels = np.array([0] * 6 + [1] * 3 + [2])
    parts = np.array([0.6, 0.3, 0.1])
    entropy = -(parts * np.log(parts)).sum()
    assert smallest_softmax_loss(np.zeros((10, 4)), labels, 3) == pytest.approx(entropy, rel=1e-6)


def test_no_random_head_has_a_smaller_loss() -> None:
    features, labels, head = problem(4)
    smallest = smallest_softmax_loss(features, labels, 3)
    generator = np.random.default_rng(4)
    for _ in range(200):
        head = generator.normal(size=head.shape) * 10 ** generator.uniform(-2, 1)
        assert summed_loss(features, labels, head) / 60 >= smallest
    assert smallest < np.log(3)
    # More iterations do not reduce the loss.
    assert smallest_softmax_loss(features, labels, 3, 5000) == pytest.approx(smallest, abs=1e-5)
