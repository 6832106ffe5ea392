"""The analytic Gaussian mechanism: exact privacy of training on the full batch.

Every step of full-batch training (sampling rate 1) is a Gaussian mechanism of sensitivity 1, and T
of them with noise multiplier sigma are one with sigma / sqrt(T). Its privacy curve is known in
closed form (Balle and Wang 2018, "Improving the Gaussian Mechanism for Differential Privacy",
theorem 8) and is the same for adding and for removing an example.
"""

import math

from scipy.optimize import brentq
from scipy.special import log_ndtr

from dpsweep.privacy.errors import CalibrationError

_RELATIVE_TOLERANCE = 1e-13
# Far wider than any use; within it every intermediate value is a normal float.
_LOG_SIGMA_RANGE = (math.log(1e-4), math.log(1e9))


def gaussian_delta(epsilon: float, noise_multiplier: float, steps: int = 1) -> float:
    """Return the smallest delta for which full-batch training is (epsilon, delta)-DP.

    Args:
        epsilon: at least 0.
        noise_multiplier: standard deviation of the noise over the sensitivity, per step.
        steps: number of steps that are composed.
    """
    sigma = noise_multiplier / math.sqrt(steps)
    upper = log_ndtr(0.5 / sigma - epsilon * sigma)
    lower = epsilon + log_ndtr(-0.5 / sigma - epsilon * sigma)
    # Phi(a) - e^epsilon Phi(b) as one product: exp(epsilon) alone would overflow.
    return float(-math.exp(upper) * math.expm1(min(lower - upper, 0.0)))


def gaussian_epsilon(delta: float, noise_multiplier: float, steps: int = 1) -> float:
    """Return the smallest epsilon >= 0 for which full-batch training is (epsilon, delta)-DP."""
    if gaussian_delta(0.0, noise_multiplier, steps) <= delta:
        return 0.0

    def excess(epsilon: float) -> float:
        return math.log(max(gaussian_delta(epsilon, noise_multiplier, steps), 1e-300) / delta)

    upper = 1.0
    while excess(upper) > 0:
        upper *= 2
    return float(brentq(excess, 0.0, upper, xtol=1e-300, rtol=_RELATIVE_TOLERANCE))


def gaussian_noise_multiplier(epsilon: float, delta: float, steps: int = 1) -> float:
    """Return the smallest noise multiplier for which full-batch training is (epsilon, delta)-DP.

    Raises:
        CalibrationError: the target is so extreme that floating point cannot resolve it.
    """

    def excess(log_sigma: float) -> float:
        return math.log(max(gaussian_delta(epsilon, math.exp(log_sigma)), 1e-300) / delta)

    lower, upper = _LOG_SIGMA_RANGE
    if not excess(lower) > 0 > excess(upper):
        raise CalibrationError(
            f"epsilon = {epsilon}, delta = {delta} needs a noise multiplier outside "
            f"[{math.exp(lower):.0e}, {math.exp(upper):.0e}] per full-batch step: choose a target "
            "nearer to common practice"
        )
    log_sigma = brentq(excess, lower, upper, xtol=1e-14, rtol=_RELATIVE_TOLERANCE)
    sigma = math.exp(log_sigma) * math.sqrt(steps)
    # The root is exact to rounding, on either side: step to the safe one.
    margin = _RELATIVE_TOLERANCE
    while gaussian_epsilon(delta, sigma, steps) > epsilon:
        sigma *= 1 + margin
        margin *= 2
    return sigma
