"""Recommended hyperparameters: the batch size by the paper's rule, C and the learning rate by a formula.

The unit of C is G, the norm of an example's gradient before training. Bounds below the norms clip every
gradient, and give nearly the same accuracy.

The unit of the learning rate r is 1 / (G sqrt(T)). Adam moves every parameter by about r in each step.
Where noise is larger than the gradients, T steps are a random walk of length r sqrt(T). The gradients of
a linear layer with input x have a norm of about |x|, so its logits walk by about r sqrt(T) G. This should
be about 1: shorter walks cannot separate the classes, longer ones hide them in noise.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dpsweep.base.errors import DpsweepError
from dpsweep.config.cells import optimizer_steps
from dpsweep.config.optimizers import BY_DEFAULT, optimizer_of
from dpsweep.privacy import Sampling
from dpsweep.privacy.calibration import noise_multiplier

TOLERANCE = 0.05
"""The share by which cumulative noise may exceed its minimum."""
LEAST_STEPS = 20
"""Fewer optimizer steps train badly even with little noise (paper, figure 5)."""
BOUND = 0.15
"""C in units of G; below nearly all norms."""
SIZES, RATES = (1 / 4, 1.0, 4.0), (1 / 2, 1.0, 2.0)
"""The small grid, in units of the recommended batch size and of the learning rate for each size."""
_SMALLEST_BATCH = 32


class NoAdviceError(DpsweepError):
    """A setting that the formula does not cover."""


@dataclass(frozen=True)
class ProblemFacts:
    """Facts about a problem that are known before training; none is read from its data."""

    train_size: int
    """N, of rows or of units of several rows"""
    epsilon: float
    delta: float
    epochs: int
    optimizer: str | dict[str, Any]
    """its identity, as in a trial's key"""
    gradient_norm: float
    """G, of one example before training"""
    norm_source: str = "exact"
    """exact, measured on made-up inputs, or a guess"""
    rounding: str = "round"
    """how epochs become steps (``privacy.step_rounding``)"""

    def steps(self, size: int) -> int:
        """Return T for a batch size."""
        return optimizer_steps(self.train_size, size, self.epochs, self.rounding)


@dataclass(frozen=True)
class Recommendation:
    """Hyperparameters, and a small grid around them."""

    batch_size: int
    steps: int
    clipping_bound: float
    learning_rate: float
    small_grid: Mapping[int, list[float]]
    """learning rates to try for each batch size, all with the same clipping bound"""


def smallest_batch_size(noise: Callable[[int], float], steps: Mapping[int, int]) -> int:
    """Return the smallest batch size with nearly the least cumulative noise.

    >>> noise = {64: 30.0, 256: 15.1, 1024: 15.0}
    >>> smallest_batch_size(noise.__getitem__, {64: 200, 256: 50, 1024: 12})
    256

    Only batch sizes with at least `LEAST_STEPS` steps count. Without any, return the one with most steps.

    Args:
        noise: returns sigma sqrt(T) for a batch size; it falls with the size. Called for large sizes first.
        steps: T by batch size.
    """
    allowed = sorted(size for size in steps if steps[size] >= LEAST_STEPS)
    if not allowed:
        return max(steps, key=lambda size: (steps[size], -size))
    *smaller, best = allowed
    enough = (1 + TOLERANCE) * noise(best)
    # Begin with the large sizes: calibration takes longest for small ones, with their many steps.
    for size in reversed(smaller):
        if noise(size) > enough:
            break
        best = size
    return best


def batch_size(facts: ProblemFacts) -> int:
    """Return the batch size for a problem: a power of two, or all examples.

    Raises:
        CalibrationError: no noise gives this epsilon and delta.
    """
    whole, size = facts.train_size, _SMALLEST_BATCH
    sizes = [whole]
    while size < whole:
        sizes.append(size)
        size *= 2
    steps = {size: facts.steps(size) for size in sizes}

    def noise(size: int) -> float:
        """Return sigma sqrt(T)."""
        sampling = Sampling(whole, size, steps[size])
        sigma = noise_multiplier(facts.epsilon, facts.delta, sampling)
        return math.sqrt(sampling.steps) * sigma

    return smallest_batch_size(noise, steps)


def learning_rate(gradient_norm: float, steps: float) -> float:
    """Return the learning rate of Adam, 1 / (G sqrt(T)).

    >>> learning_rate(10.0, 100)
    0.01

    Args:
        gradient_norm: G, of one example before training.
        steps: T, or the sum of the squares of a schedule's factors.
    """
    return 1 / (gradient_norm * math.sqrt(steps))


def recommend(facts: ProblemFacts) -> Recommendation:
    """Recommend hyperparameters, and a small grid of batch sizes and learning rates.

    >>> made = recommend(ProblemFacts(5000, 2.0, 1e-5, 8, "adam", gradient_norm=5.0))
    >>> made.batch_size, made.steps, made.clipping_bound, f"{made.learning_rate:.2g}"
    (1024, 39, 0.75, '0.032')

    Args:
        facts: about the problem.

    Raises:
        CalibrationError: no noise gives this epsilon and delta.
        NoAdviceError: the formula does not cover the optimizer, or epsilon is infinite.
    """
    if facts.epsilon == math.inf:
        raise NoAdviceError(
            "epsilon: found inf; allowed: finite, because the formula is about noise (docs/recommend.md)"
        )
    optimizer = optimizer_of(facts.optimizer)
    if not optimizer.unit_steps:
        allowed = ", ".join(name for name, each in BY_DEFAULT.items() if each.unit_steps)
        raise NoAdviceError(
            f"optimizer: found {optimizer.kind}; allowed: {allowed}, whose steps the formula for the "
            "learning rate is about (docs/recommend.md)"
        )

    def rate(steps: int) -> float:
        # With a schedule, the sum of the squares of its factors takes the place of T.
        squares = math.fsum(optimizer.factor(step, steps) ** 2 for step in range(1, steps + 1))
        return learning_rate(norm, squares)

    size, norm = batch_size(facts), facts.gradient_norm
    steps, whole = facts.steps(size), facts.train_size
    sizes = sorted({min(max(1, round(size * factor)), whole) for factor in SIZES})
    return Recommendation(
        batch_size=size,
        steps=steps,
        clipping_bound=BOUND * norm,
        learning_rate=rate(steps),
        small_grid={each: [factor * rate(facts.steps(each)) for factor in RATES] for each in sizes},
    )
