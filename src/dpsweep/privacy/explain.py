"""Explanation of (epsilon, delta) for any mechanism, or for one training with calibrated noise."""

import textwrap
from collections.abc import Iterator

from dpsweep.base.numbers import real, rounded_up
from dpsweep.privacy import plain_words
from dpsweep.privacy.calibration import calibrate
from dpsweep.privacy.sampling import CalibrationError
from dpsweep.privacy.trade_off import (
    GROUPS,
    Attack,
    attacks_on_training,
    best_attack,
    claimed_gaussian,
    guarantee_trade_off,
)

WIDTH = 110
LARGEST_EPSILON = 100
"""Larger epsilons promise almost nothing."""


def explanation(
    epsilon: float,
    delta: float,
    train_size: int | None = None,
    batch_size: int | None = None,
    steps: int | None = None,
) -> Iterator[str]:
    """Yield the lines of an explanation of a guarantee for one person.

    Args:
        epsilon: of the guarantee, positive, at most `LARGEST_EPSILON`.
        delta: of the guarantee, in (0, 1).
        train_size: N, of training with noise calibrated to the guarantee. None explains the guarantee of
            any mechanism.
        batch_size: B; None is the full batch.
        steps: T.

    Raises:
        CalibrationError: a number is out of range, or only one of N and T is given.
    """
    epsilon = real("epsilon", epsilon, CalibrationError)
    delta = real("delta", delta, CalibrationError)
    if not (0 < epsilon <= LARGEST_EPSILON and 0 < delta < 1):
        raise CalibrationError(
            f"found epsilon = {epsilon:g} and delta = {delta:g}; allowed: an epsilon above 0 and at most "
            f"{LARGEST_EPSILON}, a delta above 0 and below 1"
        )
    if train_size is None or steps is None:
        given = {"--train-size": train_size, "--batch-size": batch_size, "--steps": steps}
        if wrong := [name for name, value in given.items() if value is not None]:
            raise CalibrationError(
                f"found {' and '.join(wrong)} alone; allowed: --train-size and --steps, with or without "
                "--batch-size, or none of them"
            )
        yield from _of_any_mechanism(epsilon, delta)
        return
    noise = calibrate(epsilon, delta, train_size, batch_size or train_size, steps)
    yield (
        f"Training with N = {noise.train_size}, B = {noise.batch_size}, T = {noise.steps} and the noise "
        f"multiplier {noise.noise_multiplier:.4g}. Rates are from the privacy loss of this training."
    )
    yield ""
    yield from in_words(epsilon, delta, attacks_on_training(noise))


def in_words(epsilon: float, delta: float, attacks: list[Attack]) -> Iterator[str]:
    """Yield the paragraph and the table of rates.

    Args:
        epsilon: of the guarantee.
        delta: of the guarantee.
        attacks: the best attacks, on one record first.
    """
    yield from textwrap.wrap(plain_words.paragraph(epsilon, delta, attacks), WIDTH)
    yield ""
    yield from plain_words.table(attacks)


def _of_any_mechanism(epsilon: float, delta: float) -> Iterator[str]:
    worst = [best_attack(guarantee_trade_off(epsilon, delta, each), each) for each in GROUPS]
    gaussian = [best_attack(claimed_gaussian(epsilon, delta, each), each) for each in GROUPS]
    pair = f"({rounded_up(epsilon)}, {rounded_up(delta)})"
    yield from textwrap.wrap(
        f"Any mechanism with {pair}: bounds on every attacker, which are reached for one record by the "
        "mechanism that gives away all that the pair allows. Those of several records follow by group "
        "privacy.",
        WIDTH,
    )
    yield ""
    yield from in_words(epsilon, delta, worst)
    yield ""
    yield from textwrap.wrap(
        f"The Gaussian mechanism with {pair}, such as full-batch training: exact, but no bound for others. "
        "For training with sampled batches give --train-size, --batch-size and --steps.",
        WIDTH,
    )
    yield ""
    yield from plain_words.table(gaussian)
