"""Recommended hyperparameters: batch size, C and learning rate by formulas.

The unit of C is G, the norm of an example's gradient before training. Bounds below the norms clip every
gradient, and give nearly the same accuracy.

The unit of the learning rate r is 1 / (G sqrt(T)). Adam moves every parameter by about r in each step.
Where noise is larger than the gradients, T steps are a random walk of length r sqrt(T). The gradients of
a linear layer with input x have a norm of about |x|, so its logits walk by about r sqrt(T) G. This should
be about 1: shorter walks cannot separate the classes, longer ones hide them in noise. Where features are
normalised, G is known exactly, and 2 was the better number: what examples have in common separates no
classes, so less than G counts. docs/recommend.md says how the numbers were chosen and judged.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dpsweep.base.errors import DpsweepError
from dpsweep.privacy import Sampling
from dpsweep.privacy.calibration import noise_multiplier
from dpsweep.study.cells import optimizer_steps
from dpsweep.study.optimizers import BY_DEFAULT, optimizer_of

SIGNAL = 0.05
"""How much few steps cost where the signal is above the noise (`best_batch_size`)."""
LEAST_STEPS = 20
"""Fewer optimizer steps train badly even with little noise (paper, figure 5)."""
WALK = {"exact": 2.0}
"""How far logits walk, by where G comes from; otherwise 1."""
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
    parameters: int = 2000
    """trainable ones of the head"""
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


def best_batch_size(noise: Callable[[int], float], sizes: Iterable[int], parameters: int) -> int:
    """Return the batch size with the best trade of noise against steps.

    >>> noise = {64: 30.0, 256: 15.1, 1024: 15.0}
    >>> best_batch_size(noise.__getitem__, noise, 2000)
    256
    >>> best_batch_size(noise.__getitem__, noise, 1_000_000)
    1024

    Noise is counted by its logarithm. Few steps cost the more, the larger the signal of a training is
    beside its noise: `SIGNAL` times B / (sigma sqrt(T) sqrt(d)), which is that ratio divided by T. A sum of
    gradients grows with B, and noise in d dimensions has a norm of about sqrt(d).

    Args:
        noise: returns sigma sqrt(T) for a batch size; it falls with the size. Called for large sizes first.
        sizes: to choose from.
        parameters: d, the number of trainable parameters.
    """
    best, least = 0, math.inf
    # Begin with the large sizes: calibration takes longest for small ones, with their many steps.
    for size in sorted(sizes, reverse=True):
        cumulative = noise(size)
        if math.log(cumulative) >= least:
            break  # smaller ones have more noise still
        cost = math.log(cumulative) + SIGNAL * size / (cumulative * math.sqrt(parameters))
        if cost < least:
            best, least = size, cost
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

    def noise(size: int) -> float:
        """Return sigma sqrt(T)."""
        sampling = Sampling(whole, size, facts.steps(size))
        sigma = noise_multiplier(facts.epsilon, facts.delta, sampling)
        return math.sqrt(sampling.steps) * sigma

    enough = [size for size in sizes if facts.steps(size) >= LEAST_STEPS]
    return best_batch_size(noise, enough or [min(sizes)], facts.parameters)


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
    (1024, 39, 0.75, '0.064')

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
        return WALK.get(facts.norm_source, 1.0) * learning_rate(norm, squares)

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
