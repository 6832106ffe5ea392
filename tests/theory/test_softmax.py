"""The constants of a linear head with softmax, against gradients that are written out."""

import numpy as np
import pytest
from tests.theory.test_progress import clipped_sum, problem, summed_loss

from dpsweep.theory import (
    smallest_softmax_loss,
    softmax_gradient_deviation,
    softmax_gram,
    softmax_residuals,
    softmax_smoothness,
)


def gradients(features: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Of each example alone, shape (B, d)."""
    return np.stack(
        [
            clipped_sum(features[[row]], labels[[row]], weights, np.inf).ravel()
            for row in range(len(labels))
        ]
    )


def test_gram_matrix_is_that_of_the_heads_gradients() -> None:
    features, labels, head = problem(1)
    wanted = gradients(features, labels, head)
    found = softmax_gram(features, softmax_residuals(features, labels, head))
    np.testing.assert_allclose(found, wanted @ wanted.T, atol=1e-12)


def test_gradients_are_those_of_the_loss() -> None:
    features, labels, head = problem(2)
    direction = np.random.default_rng(2).normal(size=head.shape)
    ahead, behind = (
        summed_loss(features, labels, head + size * direction) for size in (1e-5, -1e-5)
    )
    slope = (clipped_sum(features, labels, head, np.inf) * direction).sum()
    assert (ahead - behind) / 2e-5 == pytest.approx(slope, rel=1e-7)


@pytest.mark.parametrize("seed", range(5))
def test_gradients_change_by_no_more_than_the_smoothness_says(seed: int) -> None:
    features, labels, head = problem(seed)
    smoothness = softmax_smoothness(features)
    generator = np.random.default_rng(seed)
    for size in (1e-6, 1e-2, 1.0):
        other = head + size * generator.normal(size=head.shape)
        first, second = (clipped_sum(features, labels, each, np.inf) for each in (head, other))
        assert np.linalg.norm(first - second) <= smoothness * np.linalg.norm(head - other)


def test_smoothness_is_reached_where_two_classes_are_equally_likely() -> None:
    # One example, two classes, zero weights: the Hessian's largest eigenvalue is 1/2 |x|^2.
    features, label, size = np.array([[3.0, 4.0]]), np.array([0]), 1e-5
    step = size * np.array([[3.0, 4.0, 1.0], [-3.0, -4.0, -1.0]])
    first, second = (
        clipped_sum(features, label, each, np.inf) for each in (np.zeros((2, 3)), step)
    )
    found = np.linalg.norm(first - second) / np.linalg.norm(step)
    assert found == pytest.approx(softmax_smoothness(features), rel=1e-6)
    assert softmax_smoothness(features) == pytest.approx(13)


def test_deviation_is_that_of_the_written_out_gradients() -> None:
    features, labels, head = problem(3)
    every = gradients(features, labels, head)
    wanted = np.sqrt(((every - every.mean(0)) ** 2).sum(1).mean())
    assert softmax_gradient_deviation(features, labels, head) == pytest.approx(wanted, rel=1e-10)
    same = np.repeat(features[:1], 4, axis=0), np.repeat(labels[:1], 4), head
    assert softmax_gradient_deviation(*same) == pytest.approx(0, abs=1e-6)


def test_smallest_loss_has_a_closed_form_where_features_say_nothing() -> None:
    # Only the bias can learn: the loss is the entropy of the labels.
    labels = np.array([0] * 6 + [1] * 3 + [2])
    parts = np.array([0.6, 0.3, 0.1])
    entropy = -(parts * np.log(parts)).sum()
    assert smallest_softmax_loss(np.zeros((10, 4)), labels, 3) == pytest.approx(entropy, rel=1e-6)


def test_no_head_nearby_has_a_smaller_loss() -> None:
    features, labels, head = problem(4)
    smallest = smallest_softmax_loss(features, labels, 3)
    generator = np.random.default_rng(4)
    for _ in range(200):
        head = generator.normal(size=head.shape) * 10 ** generator.uniform(-2, 1)
        assert summed_loss(features, labels, head) / 60 >= smallest
    assert smallest < np.log(3)
    # More iterations gain nothing.
    assert smallest_softmax_loss(features, labels, 3, 5000) == pytest.approx(smallest, abs=1e-5)
