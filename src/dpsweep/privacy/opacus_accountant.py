"""Opacus' PRV accountant, a which checks a calibration. Importing it imports torch."""

from opacus.accountants import PRVAccountant


def opacus_epsilon(
    noise_multiplier: float, sampling_rate: float, steps: int, delta: float, epsilon_error: float
) -> float:
    """Return the upper bound on epsilon of Opacus' PRV accountant, for removing an example.

    Args:
        noise_multiplier: standard deviation of the noise over the sensitivity, per step.
        sampling_rate: probability that an example takes part in a step, in (0, 1].
        steps: number of steps that are composed.
        delta: of the (epsilon, delta) guarantee.
        epsilon_error: by which the bound exceeds the accountant's estimate. Time and memory go as
            its inverse.
    """
    accountant = PRVAccountant()
    accountant.history = [(noise_multiplier, sampling_rate, steps)]
    return float(accountant.get_epsilon(delta, eps_error=epsilon_error))
