"""The bound of Koloskova et al. for private SGD."""

import numpy as np
import pytest

from dpsweep.theory import ConvergenceBound


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
    values = bound().best(bounds)
    found = bound().optimum(1e-3, 1e3)
    assert found.gradient_norm <= values.min() * 1.01
    at = bound().at(np.array(found.clipping_bound), np.array(found.step_size))
    assert at == pytest.approx(found.gradient_norm)
    assert 0 < found.step_size <= 1 / 2.0
    near = bounds[values <= 2 * values.min()]
    assert (found.lower, found.upper) == pytest.approx((near[0], near[-1]), rel=0.1)


def test_more_noise_wants_a_smaller_bound_and_longer_training_bears_more_noise() -> None:
    best = [bound(noise_multiplier=sigma).optimum(1e-4, 1e4) for sigma in (0.5, 5.0, 50.0)]
    assert best[0].clipping_bound > best[1].clipping_bound > best[2].clipping_bound
    assert best[0].gradient_norm < best[1].gradient_norm < best[2].gradient_norm


def test_range_of_the_optimum_must_be_one() -> None:
    with pytest.raises(ValueError, match="smallest < largest"):
        bound().optimum(1.0, 1.0)


@pytest.mark.parametrize("name", ["smoothness", "noise_multiplier", "steps"])
def test_constants_out_of_range_are_named(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        bound(**{name: -1})
