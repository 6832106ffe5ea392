"""The joint epsilon and delta of models that are released on the same data."""

import math

import pytest

from dpsweep.privacy import CalibrationError, Sampling
from dpsweep.privacy.calibration import calibrate
from dpsweep.privacy.gaussian import gaussian_epsilon
from dpsweep.privacy.tuning import calibrate_tuning
from dpsweep.release.certificate import ReleasedModel, best_attacks
from dpsweep.release.ledger import joint_epsilon, released_together

DELTA = 1e-5
NOISE = calibrate(2.0, DELTA, 200, 200, 4)


def model(epsilon: float, noise: bool) -> ReleasedModel:
    own = NOISE if noise else None
    return ReleasedModel(certificate="0" * 64, epsilon=epsilon, delta=DELTA, noise=own)


@pytest.mark.parametrize("earlier", [1, 3])
def test_fixed_settings_compose_as_their_steps(earlier: int) -> None:
    """Several models with T full-batch steps are one mechanism with all their steps, in closed form."""
    found = released_together([model(2.0, noise=True)] * earlier, model(2.0, noise=True))
    models = earlier + 1
    assert found.joint_delta == pytest.approx(models * DELTA)
    exact = gaussian_epsilon(models * DELTA, NOISE.noise_multiplier, models * NOISE.steps)
    assert exact * (1 - 1e-6) <= found.joint_epsilon <= exact * 1.005


@pytest.mark.parametrize("epsilon", [800.0, 1e5])
def test_epsilons_with_overflowing_exponentials_add_up(epsilon: float) -> None:
    """After a release with such an epsilon, further releases must still work."""
    first, second = model(epsilon, noise=False), model(2.0, noise=True)
    assert released_together([first], second).joint_epsilon == epsilon + 2
    assert joint_epsilon([first, second], DELTA) == math.inf


def test_deltas_that_sum_to_one_are_refused() -> None:
    earlier = [model(1.0, noise=False).model_copy(update={"delta": 0.6})] * 2
    with pytest.raises(
        CalibrationError, match=r"found deltas that are 1\.2.* together; allowed: below 1"
    ):
        released_together(earlier, model(2.0, noise=True))


@pytest.mark.parametrize("last_is_tuned", [True, False])
def test_a_tuned_model_costs_its_epsilon_and_delta(last_is_tuned: bool) -> None:
    """It costs as much as the worst mechanism with this epsilon and delta."""
    found = released_together([model(1.5, noise=False)], model(2.0, noise=not last_is_tuned))
    assert found.joint_delta == 2 * DELTA
    if last_is_tuned:
        assert found.joint_epsilon == pytest.approx(3.5)
    else:
        alone = gaussian_epsilon(2 * DELTA, NOISE.noise_multiplier, NOISE.steps)
        assert alone + 1.0 < found.joint_epsilon <= 3.5


def test_a_single_model_keeps_its_epsilon_and_delta() -> None:
    found = released_together([], model(2.0, noise=False))
    assert (found.joint_epsilon, found.joint_delta) == (2.0, DELTA)


def test_attacks_on_a_tuned_model_include_the_choice() -> None:
    tuning = calibrate_tuning(2.0, DELTA, 3.0, 1.0, [Sampling(200, 200, 4)])
    (noise,) = tuning.noise
    winner, all_trials = best_attacks(noise, None), best_attacks(noise, tuning)
    assert math.isclose(winner[0].false_positive_rates[0], all_trials[0].false_positive_rates[0])
    for one, other in zip(winner, all_trials, strict=True):
        assert one.advantage < other.advantage
