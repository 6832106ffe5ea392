"""The convergence bound of Koloskova et al. (2023) for private SGD, with measured constants.

The paper's appendix prints the bound up to a constant, and notes that its quantities are unknown in advance.
After a training they can be measured. Then one can compute the clipping bound and the step size that
minimise the bound.

As printed, some terms have the unit of a gradient norm and others the unit of its square, and the noise under
the second root is not squared. Here every term bounds the expected norm of the gradient of the mean loss:

    L eta / C s^2 + sqrt(L eta) s + min(v, v^2 / C) + sqrt(eta L / B) v + sqrt(F0 / (eta T)) + F0 / (eta T C)

with s = C sigma sqrt(d) / B, the expected norm of the noise in the mean gradient, and v the standard
deviation of per-example gradients.
"""

from dataclasses import dataclass

import numpy as np

from dpsweep.theory.sums import Array

# Logarithmic search grids are precise enough, because the bound holds only up to a constant.
_STEPS_PER_DECADE = 40
# The unknown constants of the bound may differ by such a factor.
_NEAR = 2.0


@dataclass(frozen=True)
class ConvergenceOptimum:
    """The settings that minimise the bound."""

    clipping_bound: float
    step_size: float
    """Eta for the mean loss, at most 1/L."""
    gradient_norm: float
    """The minimum of the bound, up to its constant."""
    lower: float
    """The smallest clipping bound at which the bound is at most twice its minimum."""
    upper: float
    """The largest such clipping bound."""


@dataclass(frozen=True)
class ConvergenceBound:
    """The bound for one training with measured constants.

    >>> bound = ConvergenceBound(
    ...     smoothness=2.0, initial_gap=3.0, gradient_deviation=0.7, noise_multiplier=1.5, dimension=16,
    ...     batch_size=8, steps=50,
    ... )
    >>> f"{bound.optimum(0.01, 100.0).clipping_bound:.2f}"
    '0.31'

    Attributes:
        smoothness: L of the mean loss.
        initial_gap: F0, the mean loss at the start minus the smallest one, for example from training
            without privacy.
        gradient_deviation: v, the root of the mean squared distance of per-example gradients from
            their mean.
        noise_multiplier: sigma.
        dimension: d, the number of trainable parameters.
        batch_size: B.
        steps: T.
    """

    smoothness: float
    initial_gap: float
    gradient_deviation: float
    noise_multiplier: float
    dimension: int
    batch_size: int
    steps: int

    def __post_init__(self) -> None:
        positive = ("smoothness", "initial_gap", "dimension", "batch_size", "steps")
        for name in positive:
            if not 0 < getattr(self, name) < np.inf:
                raise ValueError(f"{name}: found {getattr(self, name)}; allowed: above 0, finite")
        for name in ("gradient_deviation", "noise_multiplier"):
            if not 0 <= getattr(self, name) < np.inf:
                raise ValueError(f"{name}: found {getattr(self, name)}; allowed: 0 or more, finite")

    def at(self, clipping_bounds: Array, step_sizes: Array) -> Array:
        """Return the bound on the gradient's norm, up to a constant; arguments broadcast."""
        bound, step = np.asarray(clipping_bounds), np.asarray(step_sizes)
        smooth, spread = self.smoothness * step, self.gradient_deviation
        noise = bound * self.noise_multiplier * np.sqrt(self.dimension) / self.batch_size
        gap = self.initial_gap / (step * self.steps)
        found: Array = (
            smooth / bound * noise**2
            + np.sqrt(smooth) * noise
            + np.minimum(spread, spread**2 / bound)
            + np.sqrt(smooth / self.batch_size) * spread
            + np.sqrt(gap)
            + gap / bound
        )
        return found

    def optimum(self, smallest: float, largest: float) -> ConvergenceOptimum:
        """Return the clipping bound and the step size that minimise the bound.

        Args:
            smallest: lower end of the range of C.
            largest: upper end of the range of C.

        Raises:
            ValueError: unless 0 < smallest < largest.
        """
        if not 0 < smallest < largest:
            raise ValueError(f"found {smallest} and {largest}; allowed: 0 < smallest < largest")
        count = int(np.log10(largest / smallest) * _STEPS_PER_DECADE) + 2
        bounds = np.geomspace(smallest, largest, count)
        decades = 8
        steps = np.logspace(-decades, 0, decades * _STEPS_PER_DECADE + 1) / self.smoothness
        values = self.at(bounds[:, None], steps)
        place, step = np.unravel_index(np.argmin(values), values.shape)
        near = bounds[values.min(1) <= _NEAR * values[place, step]]
        return ConvergenceOptimum(
            clipping_bound=float(bounds[place]),
            step_size=float(steps[step]),
            gradient_norm=float(values[place, step]),
            lower=float(near[0]),
            upper=float(near[-1]),
        )
