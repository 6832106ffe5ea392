"""The constants of the theory for a linear softmax head on fixed features, where they are known exactly.

The head has weights of shape (classes, f + 1); the last column is the bias. Losses are cross entropies. The
gradient of an example is the outer product of its residual (predicted probabilities minus the one-hot label)
and its features with a 1 appended.
"""

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

from dpsweep.theory.sums import Array, finite


def softmax_gram(features: npt.ArrayLike, residuals: npt.ArrayLike) -> Array:
    """Return the Gram matrix of the head's per-example gradients without computing the gradients.

    >>> softmax_gram(features=[[1.0], [2.0]], residuals=[[0.5, -0.5], [-0.5, 0.5]])
    array([[ 1. , -1.5],
           [-1.5,  2.5]])

    Inner products of outer products are products of inner products.

    Args:
        features: shape (B, f), inputs of the head.
        residuals: shape (B, classes), from `softmax_residuals`.

    Returns:
        Shape (B, B).

    Raises:
        ValueError: the arrays have different numbers of rows, or are not finite.
    """
    x, r = (np.asarray(each, dtype=np.float64) for each in (features, residuals))
    if x.ndim != 2 or r.ndim != 2 or len(x) != len(r):
        raise ValueError(
            f"features and residuals: found shapes {x.shape} and {r.shape}; allowed: two arrays with "
            "a row for each example"
        )
    gram: Array = (x @ x.T + 1) * (r @ r.T)
    finite(np.diagonal(gram))
    return gram


def softmax_smoothness(features: npt.ArrayLike) -> float:
    """Return L of the summed cross entropy; L of the mean is this divided by B.

    >>> f"{softmax_smoothness([[0.0], [0.0]]):.3f}"
    '1.000'

    The Hessian of one example is the Kronecker product of diag(p) - p p^T and x x^T. The eigenvalues of the
    first factor are at most 1/2. So L is at most half the squared largest singular value of the features.

    Args:
        features: shape (B, f); this function appends the constant feature of the bias.
    """
    largest = np.linalg.norm(with_bias(features), ord=2)
    return float(largest**2 / 2)


def softmax_residuals(
    features: npt.ArrayLike, labels: npt.ArrayLike, weights: npt.ArrayLike
) -> Array:
    """Return predicted probabilities minus one-hot labels.

    >>> softmax_residuals([[1.0], [2.0]], labels=[0, 1], weights=np.zeros((2, 2)))
    array([[-0.5,  0.5],
           [ 0.5, -0.5]])

    Args:
        features: shape (B, f).
        labels: class indices, shape (B,).
        weights: shape (classes, f + 1).

    Returns:
        Shape (B, classes).
    """
    logits = with_bias(features) @ np.asarray(weights, dtype=np.float64).T
    return loss_and_residuals(logits, np.asarray(labels))[1]


def softmax_gradient_deviation(
    features: npt.ArrayLike, labels: npt.ArrayLike, weights: npt.ArrayLike
) -> float:
    """Return v, the root of the mean squared distance of per-example gradients from their mean.

    >>> f"{softmax_gradient_deviation([[1.0], [2.0]], labels=[0, 1], weights=np.zeros((2, 2))):.3f}"
    '1.275'

    The arguments are those of `softmax_residuals`.
    """
    x, residuals = with_bias(features), softmax_residuals(features, labels, weights)
    mean_square = float(((x**2).sum(1) * (residuals**2).sum(1)).mean())
    mean = residuals.T @ x / len(x)
    # A difference of large numbers may round below zero.
    return float(np.sqrt(max(mean_square - (mean**2).sum(), 0.0)))


def smallest_softmax_loss(
    features: npt.ArrayLike, labels: npt.ArrayLike, classes: int, iterations: int = 500
) -> float:
    """Return the mean loss after a training without privacy (L-BFGS on all examples, from zero).

    >>> f"{smallest_softmax_loss([[0.0]] * 4, labels=[0, 0, 0, 1], classes=2):.3f}"  # their entropy
    '0.562'

    More iterations may still reduce it a little. If the features separate the classes, there is no minimum,
    and the loss goes to zero.

    Args:
        features: shape (B, f).
        labels: class indices, shape (B,).
        classes: number of classes.
        iterations: largest number of iterations.
    """
    x, y = with_bias(features), np.asarray(labels)

    def mean_loss(flat: Array) -> tuple[float, Array]:
        loss, residuals = loss_and_residuals(x @ flat.reshape(classes, -1).T, y)
        return loss / len(x), (residuals.T @ x).ravel() / len(x)

    start = np.zeros(classes * x.shape[1])
    return float(
        minimize(mean_loss, start, jac=True, method="L-BFGS-B", options={"maxiter": iterations}).fun
    )


def with_bias(features: npt.ArrayLike) -> Array:
    """Return features in float64 with a 1 appended, shape (B, f + 1)."""
    x = np.asarray(features, dtype=np.float64)
    return np.concatenate([x, np.ones((len(x), 1))], axis=1)


def loss_and_residuals(logits: Array, labels: npt.NDArray[np.integer]) -> tuple[float, Array]:
    """Return the summed cross entropy and the residuals for logits of shape (B, classes)."""
    exponentials = np.exp(logits - logits.max(1, keepdims=True))
    totals = exponentials.sum(1, keepdims=True)
    residuals = exponentials / totals
    every = np.arange(len(logits))
    chosen = logits[every, labels] - logits.max(1)
    loss = float((np.log(totals[:, 0]) - chosen).sum())
    residuals[every, labels] -= 1
    return loss, residuals
