"""Batch size by the paper's rule, clipping bound and learning rate from reference points."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dpsweep.errors import DpsweepError
from dpsweep.privacy import noise_multiplier
from dpsweep.study.cells import optimizer_steps

TOLERANCE = 0.05
"""Cumulative noise may exceed its minimum by this share."""
LEAST_STEPS = 20
"""Fewer optimizer steps train badly, however little noise they have (paper, figure 5)."""
_SMALLEST_BATCH = 32
# Reference points that agree by chance do not make the small grid narrower than this, nor odd ones wider.
_NARROWEST, _WIDEST = 2.0, 10.0


class NoReferenceError(DpsweepError):
    """Nothing is known about settings like these."""


@dataclass(frozen=True)
class Situation:
    """What is known of a problem before anything is trained."""

    train_size: int
    epsilon: float
    delta: float
    epochs: int
    method: str
    """Name of the method; what follows a hyphen tells variants apart (lora-r4)."""
    optimizer: str


@dataclass(frozen=True)
class Reference:
    """The best setting of one (dataset, backbone, method, optimizer, epsilon, epochs) of a sweep."""

    dataset: str
    backbone: str
    method: str
    optimizer: str
    train_size: int
    epsilon: float
    epochs: int
    batch_size: int
    clipping_bound: float
    learning_rate: float


@dataclass(frozen=True)
class Estimate:
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
    clipping_bound: Estimate
    learning_rate: Estimate
    references: tuple[Reference, ...]


def smallest_batch_size(cumulative_noise: Mapping[int, float], steps: Mapping[int, int]) -> int:
    """Return the smallest batch whose cumulative noise is nearly the least.

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


def batch_size(situation: Situation, rounding: str = "round") -> int:
    """Return the batch size for a situation: a power of two, or all examples.

    Raises:
        CalibrationError: epsilon or delta cannot be had.
    """
    powers = (2**power for power in range(_SMALLEST_BATCH.bit_length() - 1, 40))
    sizes = []
    for size in powers:
        if size >= situation.train_size:
            break
        sizes.append(size)
    sizes.append(situation.train_size)
    steps = {
        size: optimizer_steps(situation.train_size, size, situation.epochs, rounding)
        for size in sizes
    }
    noise = {
        size: math.sqrt(count)
        * noise_multiplier(situation.epsilon, situation.delta, size / situation.train_size, count)
        for size, count in steps.items()
    }
    return smallest_batch_size(noise, steps)


def recommend(
    situation: Situation,
    references: Sequence[Reference],
    choose_batch_size: Callable[[Situation], int] = batch_size,
    rounding: str = "round",
) -> Recommendation:
    """Recommend hyperparameters.

    C and the learning rate are weighted geometric means over the reference points of the same
    optimizer, and of the same kind of method where there are any. With Adam, the learning rate of a
    point is scaled with sqrt(B); with SGD, with B. Points count less the further their epsilon and
    epochs are away.

    Args:
        situation: the problem.
        references: the points; none may be of the same data.
        choose_batch_size: by default `batch_size`.
        rounding: how epochs become steps (``privacy.step_rounding``).

    Raises:
        CalibrationError: epsilon or delta cannot be had.
        NoReferenceError: there is no reference point of the same optimizer.
    """
    usable = [each for each in references if each.optimizer == situation.optimizer]
    kind = [each for each in usable if _kind(each.method) == _kind(situation.method)]
    usable = kind or usable
    if not usable:
        raise NoReferenceError(
            f"found no reference point of the optimizer {situation.optimizer} from other data; allowed: "
            "--references with the problem tables of such sweeps"
        )
    size = choose_batch_size(situation)
    power = 0.5 if situation.optimizer == "adam" else 1.0
    weights = [_weight(situation, each) for each in usable]
    return Recommendation(
        batch_size=size,
        steps=optimizer_steps(situation.train_size, size, situation.epochs, rounding),
        clipping_bound=_estimate([each.clipping_bound for each in usable], weights),
        learning_rate=_estimate(
            [each.learning_rate * (size / each.batch_size) ** power for each in usable], weights
        ),
        references=tuple(usable),
    )


def _kind(method: str) -> str:
    return method.partition("-")[0]


def _weight(situation: Situation, reference: Reference) -> float:
    octaves = abs(math.log2(situation.epsilon / reference.epsilon)) + abs(
        math.log2(situation.epochs / reference.epochs)
    )
    return 1 / (1 + octaves)


def _estimate(values: Sequence[float], weights: Sequence[float]) -> Estimate:
    logarithms = list(map(math.log, values))
    total = sum(weights)
    mean = sum(w * each for w, each in zip(weights, logarithms, strict=True)) / total
    spread = (
        sum(w * (each - mean) ** 2 for w, each in zip(weights, logarithms, strict=True)) / total
    )
    return Estimate(math.exp(mean), math.exp(math.sqrt(spread)))
