"""Privacy loss distributions (dp-accounting): the fast accountant, and the independent check."""

import math

from dp_accounting.pld import privacy_loss_distribution


def pld_interval(epsilon: float, steps: int) -> float:
    """Return a discretisation interval for epsilons near ``epsilon``: quick, and precise.

    The pessimistic "connect the dots" discretisation adds a variance of the order of interval^2 at
    every step, so its relative error in epsilon goes as steps * interval^2 / epsilon^2. This
    interval keeps it below about 3e-4.
    """
    return epsilon * min(3e-4, 1e-2 / math.sqrt(steps))


def pld_epsilon(
    noise_multiplier: float, sampling_rate: float, steps: int, delta: float, interval: float = 1e-4
) -> float:
    """Return an upper estimate of epsilon by dp-accounting, the worse of adding and removing.

    Args:
        noise_multiplier: standard deviation of the noise over the sensitivity, per step.
        sampling_rate: probability that an example takes part in a step, in (0, 1].
        steps: number of steps that are composed.
        delta: of the (epsilon, delta) guarantee.
        interval: mesh of the discretised privacy loss; the estimate falls towards the exact
            epsilon as it shrinks.
    """
    if sampling_rate == 1:
        distribution = privacy_loss_distribution.from_gaussian_mechanism(
            noise_multiplier / math.sqrt(steps), value_discretization_interval=interval
        )
    else:
        distribution = privacy_loss_distribution.from_gaussian_mechanism(
            noise_multiplier, sampling_prob=sampling_rate, value_discretization_interval=interval
        ).self_compose(steps)
    return float(distribution.get_epsilon_for_delta(delta))
