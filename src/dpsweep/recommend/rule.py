"""A setting from the facts of a problem: the batch size by the paper's rule, and a formula for the rest.

The unit of C is the norm G of an example's gradient before training: bounds below the norms clip
everything, and are nearly alike.

The unit of the learning rate r is one over G sqrt(T). Adam moves every parameter by about r in each
step, and where noise is larger than gradients, T steps are a random walk of length r sqrt(T). A linear
layer that reads x has gradients of norm |x|, nearly, and its logits then walk about r sqrt(T) G, which
should be of the order of one: less cannot tell classes apart, more drowns them.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dpsweep.base.errors import DpsweepError
from dpsweep.config.cells import optimizer_steps
from dpsweep.config.optimizers import BY_DEFAULT, optimizer_of
from dpsweep.privacy.calibration import noise_multiplier

TOLERANCE = 0.05
"""Cumulative noise may exceed its minimum by this share."""
LEAST_STEPS = 20
"""Fewer optimizer steps train badly, however little noise they have (paper, figure 5)."""
BOUND = 0.15
"""C in units of G: below nearly every norm."""
SIZES, RATES = (1 / 4, 1.0, 4.0), (1 / 2, 1.0, 2.0)
"""The small grid, in units of the recommended batch size and of the learning rate that belongs to a size."""
_SMALLEST_BATCH = 32


class NoAdviceError(DpsweepError):
    """The formula is not for settings like these."""


@dataclass(frozen=True)
class Situation:
    """Facts about a problem that are known before training."""

    train_size: int
    epsilon: float
    delta: float
    epochs: int
    optimizer: str | dict[str, Any]
    """its identity, as a trial's key has it"""
    gradient_norm: float
    """G, of one example before training."""
    rounding: str = "round"
    """How epochs become steps (``privacy.step_rounding``)."""

    def steps(self, size: int) -> int:
        """T with batches of a size."""
        return optimizer_steps(self.train_size, size, self.epochs, self.rounding)


@dataclass(frozen=True)
class Recommendation:
    """Hyperparameters, and a small grid around them."""

    batch_size: int
    steps: int
    clipping_bound: float
    learning_rate: float
    small_grid: Mapping[int, list[float]]
    """Learning rates by batch size, to be tried with the same clipping bound."""


def smallest_batch_size(noise: Callable[[int], float], steps: Mapping[int, int]) -> int:
    """Return the smallest batch whose cumulative noise is nearly the least.

    >>> noise = {64: 30.0, 256: 15.1, 1024: 15.0}
    >>> smallest_batch_size(noise.__getitem__, {64: 200, 256: 50, 1024: 12})
    256

    Only batches that leave `LEAST_STEPS` steps count; where none does, the one with the most steps.

    Args:
        noise: sigma sqrt(T) by batch size, which falls with it; asked for the large ones first.
        steps: T by batch size.
    """
    allowed = sorted(size for size in steps if steps[size] >= LEAST_STEPS)
    if not allowed:
        return max(steps, key=lambda size: (steps[size], -size))
    *smaller, best = allowed
    enough = (1 + TOLERANCE) * noise(best)
    # Small batches, and so many steps, take longest to calibrate.
    for size in reversed(smaller):
        if noise(size) > enough:
            break
        best = size
    return best


def batch_size(situation: Situation) -> int:
    """Return the batch size for a situation: a power of two, or all examples.

    Raises:
        CalibrationError: epsilon or delta cannot be had.
    """
    whole, size = situation.train_size, _SMALLEST_BATCH
    sizes = [whole]
    while size < whole:
        sizes.append(size)
        size *= 2
    steps = {size: situation.steps(size) for size in sizes}

    def noise(size: int) -> float:
        """Return sigma sqrt(T)."""
        count = steps[size]
        return math.sqrt(count) * noise_multiplier(
            situation.epsilon, situation.delta, size / whole, count
        )

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


def recommend(situation: Situation) -> Recommendation:
    """Recommend hyperparameters, and a small grid of batch sizes and learning rates.

    >>> made = recommend(Situation(5000, 2.0, 1e-5, 8, "adam", gradient_norm=5.0))
    >>> made.batch_size, made.steps, made.clipping_bound, f"{made.learning_rate:.2g}"
    (1024, 39, 0.75, '0.032')

    Args:
        situation: the problem.

    Raises:
        CalibrationError: epsilon or delta cannot be had.
        NoAdviceError: the steps of the optimizer have no such length, or there is no noise.
    """
    if situation.epsilon == math.inf:
        raise NoAdviceError(
            "epsilon: found inf; allowed: finite, because the formula is about noise (docs/recommend.md)"
        )
    optimizer = optimizer_of(situation.optimizer)
    if not optimizer.unit_steps:
        allowed = ", ".join(name for name, each in BY_DEFAULT.items() if each.unit_steps)
        raise NoAdviceError(
            f"optimizer: found {optimizer.kind}; allowed: {allowed}, whose steps the formula for the "
            "learning rate is about (docs/recommend.md)"
        )

    def rate(steps: int) -> float:
        # Of a schedule, the sum of squares of its factors is what T is of a constant rate.
        squares = math.fsum(optimizer.factor(step, steps) ** 2 for step in range(1, steps + 1))
        return learning_rate(norm, squares)

    size, norm = batch_size(situation), situation.gradient_norm
    steps, whole = situation.steps(size), situation.train_size
    sizes = sorted({min(max(1, round(size * factor)), whole) for factor in SIZES})
    return Recommendation(
        batch_size=size,
        steps=steps,
        clipping_bound=BOUND * norm,
        learning_rate=rate(steps),
        small_grid={
            each: [factor * rate(situation.steps(each)) for factor in RATES] for each in sizes
        },
    )
