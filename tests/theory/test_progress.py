"""Theorem 4.2 on a softmax head, and the bound of Koloskova et al."""

import numpy as np
import pytest

from dpsweep.theory import ConvergenceBound, measured_progress, softmax_smoothness
from dpsweep.theory.progress import _loss_and_residuals, _with_bias


def problem(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(60, 8))
    labels = (features[:, 0] + generator.normal(size=60) > 0).astype(int)
    return features, labels, generator.normal(size=(3, 9)) / 3


@pytest.mark.parametrize("seed", range(5))
def test_gradients_change_by_no_more_than_the_smoothness_says(seed: int) -> None:
    features, labels, head = problem(seed)
    x, smoothness = _with_bias(features), softmax_smoothness(features)
    generator = np.random.default_rng(seed)
    for size in (1e-6, 1e-2, 1.0):
        other = head + size * generator.normal(size=head.shape)
        first, second = (_loss_and_residuals(x, labels, each)[1].T @ x for each in (head, other))
        assert np.linalg.norm(first - second) <= smoothness * np.linalg.norm(head - other)


def test_smoothness_is_reached_where_two_classes_are_equally_likely() -> None:
    # One example, two classes, zero weights: the Hessian's largest eigenvalue is 1/2 |x|^2.
    features = np.array([[3.0, 4.0]])
    x, size = _with_bias(features), 1e-5
    step = size * np.stack([x[0], -x[0]])
    first, second = (
        _loss_and_residuals(x, np.array([0]), each)[1].T @ x for each in (np.zeros((2, 3)), step)
    )
    found = np.linalg.norm(first - second) / np.linalg.norm(step)
    assert found == pytest.approx(softmax_smoothness(features), rel=1e-6)
    assert softmax_smoothness(features) == pytest.approx(13)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("sigma", [0.0, 0.1, 1.0])
def test_measured_steps_keep_the_bound(seed: int, sigma: float) -> None:
    bounds = np.array([0.01, 0.3, 1.0, 3.0, 30.0])
    found = measured_progress(*problem(seed), bounds, sigma, draws=64)
    slack = 4 * found.standard_error
    assert (found.measured <= found.bound + slack).all()
    # And it is not loose by orders of magnitude where nothing is clipped and there is no noise.
    if sigma == 0:
        assert found.measured[-1] < found.bound[-1] < found.measured[-1] / 4 < 0


def test_a_step_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="step size"):
        measured_progress(*problem(0), np.array([1.0]), 1.0, step_size=1.0)


def bound(**changed: float) -> ConvergenceBound:
    settings = {
        "smoothness": 2.0, "initial_gap": 3.0, "gradient_deviation": 0.7, "noise_multiplier": 1.5,
        "dimension": 16, "batch_size": 8, "steps": 50,
    }  # fmt: skip
    return ConvergenceBound(**(settings | changed))  # type: ignore[arg-type]


def test_convergence_bound_by_hand() -> None:
    # C = 2, eta = 0.1: L eta = 0.2, s = 2 * 1.5 * 4 / 8 = 1.5, F0 / (eta T) = 0.6.
    wanted = (
        0.2 / 2 * 1.5**2 + 0.2**0.5 * 1.5 + 0.49 / 2 + (0.2 / 8) ** 0.5 * 0.7 + 0.6**0.5 + 0.6 / 2
    )
    assert bound().at(np.array(2.0), np.array(0.1)) == pytest.approx(wanted)


def test_units_of_the_convergence_bound() -> None:
    # Losses a hundred times as large, at the same parameters: gradients, and so C, are as well.
    larger = bound(smoothness=200.0, initial_gap=300.0, gradient_deviation=70.0)
    bounds = np.geomspace(0.1, 10, 7)
    np.testing.assert_allclose(larger.best(100 * bounds), 100 * bound().best(bounds))


def test_optimum_of_the_convergence_bound() -> None:
    bounds = np.geomspace(1e-3, 1e3, 5000)
    best = bound().optimal_clipping(1e-3, 1e3)
    assert bound().best(np.array(best)) <= bound().best(bounds).min() * 1.01


@pytest.mark.parametrize("name", ["smoothness", "noise_multiplier", "steps"])
def test_constants_out_of_range_are_named(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        bound(**{name: -1})
