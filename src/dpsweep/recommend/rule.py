"""Batch size by the paper's rule; clipping bound and learning rate from reference points.

Both come in units that carry over from one problem to another.

The unit of C is the norm G of an example's gradient before training: bounds below the norms clip
everything, and are nearly alike.

The unit of the learning rate r is one over G sqrt(T). Adam moves every parameter by about r in each
step, and where noise is larger than gradients, T steps are a random walk of length r sqrt(T). A linear
layer that reads x has gradients of norm |x|, nearly, and its logits then walk about r sqrt(T) G, which
should be of the order of one: less cannot tell classes apart, more drowns them. SGD has no such
normalisation; its rates are taken to go with 1 / (G T).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpsweep.base.errors import DpsweepError
from dpsweep.privacy.calibration import noise_multiplier
from dpsweep.study.cells import optimizer_steps

TOLERANCE = 0.05
"""Cumulative noise may exceed its minimum by this share."""
LEAST_STEPS = 20
"""Fewer optimizer steps train badly, however little noise they have (paper, figure 5)."""
_SMALLEST_BATCH = 32
_POWERS = {"adam": 0.5, "sgd": 1.0}
"""Learning rates go with T to minus this power."""
# Reference points that agree by chance do not make the small grid narrower than this, nor odd ones wider.
_NARROWEST, _WIDEST = 2.0, 10.0


class NoReferenceError(DpsweepError):
    """Nothing is known about settings like these."""


@dataclass(frozen=True)
class Situation:
    """Facts about a problem that are known before training."""

    train_size: int
    epsilon: float
    delta: float
    epochs: int
    optimizer: str
    gradient_norm: float
    """G, of one example before training."""
    rounding: str = "round"
    """How epochs become steps (``privacy.step_rounding``)."""

    def steps(self, size: int) -> int:
        """T with batches of a size."""
        return optimizer_steps(self.train_size, size, self.epochs, self.rounding)


@dataclass(frozen=True)
class Reference:
    """The best setting of one (dataset, backbone, method, optimizer, epsilon, epochs) of a sweep."""

    dataset: str
    backbone: str
    method: str
    optimizer: str
    epsilon: float
    epochs: int
    batch_size: int
    steps: int
    clipping_bound: float
    learning_rate: float
    gradient_norm: float
    """G, as it was measured with the smallest learning rate, which hardly changes a model."""

    @property
    def source(self) -> str:
        """Name of the dataset that its data are part of."""
        return source(self.dataset)


def source(dataset: str) -> str:
    """Name the dataset that another is part of: names begin with it (digits-tenth is a part of digits)."""
    return dataset.partition("-")[0]


@dataclass(frozen=True)
class SettingEstimate:
    """A value on a logarithmic axis, and the factor by which reference points scatter around it."""

    value: float
    factor: float

    @property
    def grid(self) -> list[float]:
        """The value and its neighbours at that factor."""
        factor = min(max(self.factor, _NARROWEST), _WIDEST)
        return [
            float(f"{each:.2g}") for each in (self.value / factor, self.value, self.value * factor)
        ]


@dataclass(frozen=True)
class Recommendation:
    """Hyperparameters, and what they rest on."""

    batch_size: int
    steps: int
    clipping_bound: SettingEstimate
    learning_rate: SettingEstimate
    references: tuple[Reference, ...]


def smallest_batch_size(cumulative_noise: Mapping[int, float], steps: Mapping[int, int]) -> int:
    """Return the smallest batch whose cumulative noise is nearly the least.

    >>> smallest_batch_size({64: 30.0, 256: 15.1, 1024: 15.0}, {64: 200, 256: 50, 1024: 12})
    256

    Only batches that leave `LEAST_STEPS` steps count; where none does, the one with the most steps.

    Args:
        cumulative_noise: sigma sqrt(T) by batch size.
        steps: T by batch size.
    """
    allowed = [size for size in cumulative_noise if steps[size] >= LEAST_STEPS]
    if not allowed:
        return max(steps, key=lambda size: (steps[size], -size))
    least = min(cumulative_noise[size] for size in allowed)
    return min(size for size in allowed if cumulative_noise[size] <= (1 + TOLERANCE) * least)


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
    noise = {
        size: math.sqrt(count)
        * noise_multiplier(situation.epsilon, situation.delta, size / whole, count)
        for size, count in steps.items()
    }
    return smallest_batch_size(noise, steps)


def recommend(
    situation: Situation, references: Sequence[Reference], size: int | None = None
) -> Recommendation:
    """Recommend hyperparameters.

    C and the learning rate are weighted geometric means over the reference points of the same
    optimizer, in the units of this module. Each source of data counts the same, and a point of a
    source counts less the further its epsilon is away.

    Args:
        situation: the problem.
        references: the points; none may be of the same data.
        size: B; by default `batch_size`.

    Raises:
        CalibrationError: epsilon or delta cannot be had.
        NoReferenceError: there is no reference point of the same optimizer.
    """
    usable = [each for each in references if each.optimizer == situation.optimizer]
    if not usable:
        raise NoReferenceError(
            f"found no reference point of the optimizer {situation.optimizer} from other data; allowed: "
            "--references with the problem tables of such sweeps"
        )
    size = size or batch_size(situation)
    steps, norm = situation.steps(size), situation.gradient_norm
    power = _POWERS[situation.optimizer]
    return Recommendation(
        batch_size=size,
        steps=steps,
        clipping_bound=_estimate(
            situation, usable, lambda each: norm * each.clipping_bound / each.gradient_norm
        ),
        learning_rate=_estimate(
            situation,
            usable,
            lambda each: (
                each.learning_rate * (each.steps / steps) ** power * each.gradient_norm / norm
            ),
        ),
        references=tuple(usable),
    )


def _estimate(
    situation: Situation, references: Sequence[Reference], value: Callable[[Reference], float]
) -> SettingEstimate:
    """Return the mean over sources of the weighted mean of a value over the points of each."""
    logarithms = np.log([value(each) for each in references])
    weights = np.array(
        [1 / (1 + abs(math.log2(situation.epsilon / each.epsilon))) for each in references]
    )
    sources = np.array([each.source for each in references])
    for name in set(sources):
        weights[sources == name] /= weights[sources == name].sum()
    mean = np.average(logarithms, weights=weights)
    spread = np.average((logarithms - mean) ** 2, weights=weights)
    return SettingEstimate(math.exp(mean), math.exp(math.sqrt(spread)))
