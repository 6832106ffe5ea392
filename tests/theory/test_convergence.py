"""The convergence bound of Koloskova et al. for private SGD."""

import numpy as np
import pytest

from dpsweep.theory import ConvergenceBound


def bound(**changed: float) -> ConvergenceBound:
    settings = {
        "smoothness": 2.0, "initial_gap": 3.0, "gradient_deviation": 0.7, "noise_multiplier": 1.5,
        "dimension": 16, "batch_size": 8, "steps": 50,
    }  # fmt: skip
    return ConvergenceBound(**(settings | changed))  # type: ignore[arg-type]


@pytest.mark.parametrize("bound_c", [0.5, 2.0])
def test_convergence_bound_by_hand(bound_c: float) -> None:
    # eta = 0.1: L eta = 0.2, s = 1.5 C 4 / 8, F0 / (eta T) = 0.6.
    noise, spread = 0.75 * bound_c, min(0.7, 0.49 / bound_c)
    wanted = (
        0.2 / bound_c * noise**2 + 0.2**0.5 * noise + spread + (0.2 / 8) ** 0.5 * 0.7
        + 0.6**0.5 + 0.6 / bound_c
    )  # fmt: skip
    assert bound().at(np.array(bound_c), np.array(0.1)) == pytest.approx(wanted)


def test_optimum_of_the_convergence_bound() -> None:
    bounds = np.geomspace(1e-3, 1e3, 5000)
    steps = np.logspace(-8, 0, 400) / 2.0
    values = bound().at(bounds[:, None], steps).min(axis=1)
    found = bound().optimum(1e-3, 1e3)
    assert found.gradient_norm <= values.min() * 1.01
    at = bound().at(np.array(found.clipping_bound), np.array(found.step_size))
    assert at == pytest.approx(found.gradient_norm)
    assert 0 < found.step_size <= 1 / 2.0
    near = bounds[values <= 2 * values.min()]
    assert (found.lower, found.upper) == pytest.approx((near[0], near[-1]), rel=0.1)


@pytest.mark.parametrize("name", ["smoothness", "noise_multiplier", "steps"])
def test_constants_and_ranges_out_of_range_are_named(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        bound(**{name: -1})
    with pytest.raises(ValueError, match="smallest < largest"):
        bound().optimum(1.0, 1.0)
