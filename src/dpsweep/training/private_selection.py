"""Keep the best of a secret random number of trials (`dpsweep.privacy.tuning`).

Everything lies in the memory of one process: the number of trials, their settings, scores and
parameters. A process that is killed leaves nothing, and the next one starts with other randomness.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from dpsweep.privacy.tuning import draw_trial_count
from dpsweep.privacy.tuning_noise import TuningNoise

Candidate = TypeVar("Candidate")
Model = TypeVar("Model")


@dataclass(frozen=True)
class Winner(Generic[Candidate, Model]):
    """The one trial that is released."""

    candidate: Candidate
    model: Model
    score: float
    """right answers on the held-out part, plus noise"""


def select_privately(
    candidates: Sequence[Candidate],
    train: Callable[[Candidate], tuple[Model, int]],
    noise: TuningNoise,
    random: np.random.Generator,
) -> Winner[Candidate, Model]:
    """Train a random number of random candidates, and return the one with the highest score.

    Args:
        candidates: equally likely in each trial; the list does not depend on the data.
        train: trains a candidate with randomness of its own, and returns a model and how many
            examples of the held-out part it gets right.
        noise: mean and shape of the number of trials, and the noise of scores.
        random: nobody else may know its state.
    """
    winner: Winner[Candidate, Model] | None = None
    for _ in range(draw_trial_count(noise.mean, noise.shape, random)):
        candidate = candidates[int(random.integers(len(candidates)))]
        model, right = train(candidate)
        score = right + noise.score_noise * random.standard_normal()
        if winner is None or score > winner.score:
            winner = Winner(candidate, model, score)
    assert winner is not None  # noqa: S101 (there is at least one trial)
    return winner
