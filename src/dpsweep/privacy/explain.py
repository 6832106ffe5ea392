"""Explanation of (epsilon, delta), for any mechanism or for one training with calibrated noise.

A paragraph and a table say it in numbers that a data protection officer can use. All numbers are upper bounds
on every attacker, rounded upwards.
"""

import math
import textwrap
from collections.abc import Iterator, Sequence

from dpsweep.base.formatting import rounded_up
from dpsweep.privacy.calibration import calibrate
from dpsweep.privacy.noise import CalibrationError, checked_target
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
_QUOTED = 1
"""Index of the false positive rate that the paragraph quotes: 1 %."""


def explanation(
    epsilon: float,
    delta: float,
    train_size: int | None = None,
    batch_size: int | None = None,
    steps: int | None = None,
    unit: str | None = None,
) -> Iterator[str]:
    """Yield the lines of an explanation of a guarantee for one person.

    Args:
        epsilon: of the guarantee, positive, at most `LARGEST_EPSILON`.
        delta: of the guarantee, in (0, 1).
        train_size: N, of training with noise calibrated to the guarantee. None explains the guarantee of
            any mechanism.
        batch_size: B; None is the full batch.
        steps: T.
        unit: what a record is, if it has several rows; see `paragraph`.

    Raises:
        CalibrationError: a number is out of range, or only one of N and T is given.
    """
    epsilon, delta = checked_target(epsilon, delta, LARGEST_EPSILON)
    if train_size is None or steps is None:
        given = {"--train-size": train_size, "--batch-size": batch_size, "--steps": steps}
        if wrong := [name for name, value in given.items() if value is not None]:
            raise CalibrationError(
                f"found {' and '.join(wrong)} alone; allowed: --train-size and --steps, with or without "
                "--batch-size, or none of them"
            )
        yield from _of_any_mechanism(epsilon, delta, unit)
        return
    size = train_size if batch_size is None else batch_size
    noise = calibrate(epsilon, delta, train_size, size, steps)
    yield (
        f"Training with N = {noise.train_size}, B = {noise.batch_size}, T = {noise.steps} and the noise "
        f"multiplier {noise.noise_multiplier:.4g}. Rates are from the privacy loss of this training."
    )
    yield ""
    yield from in_words(epsilon, delta, attacks_on_training(noise), unit)


def in_words(
    epsilon: float,
    delta: float,
    attacks: list[Attack],
    unit: str | None = None,
    attacked: str = "this training",
) -> Iterator[str]:
    """Yield the paragraph and the table of rates with its title.

    Args:
        epsilon: of the guarantee.
        delta: of the guarantee.
        attacks: the best attacks, on one record first.
        unit: see `paragraph`.
        attacked: what the attacks are on, for the title.
    """
    yield from textwrap.wrap(paragraph(epsilon, delta, attacks, unit), WIDTH)
    yield ""
    yield f"The best attacker on {attacked}, at most:"
    yield from table(attacks)


def _of_any_mechanism(epsilon: float, delta: float, unit: str | None) -> Iterator[str]:
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
    yield from in_words(epsilon, delta, worst, unit, f"any mechanism with {pair}")
    yield ""
    yield from textwrap.wrap(
        f"The Gaussian mechanism with {pair}, such as full-batch training: exact, but no bound for others. "
        "For training with sampled batches give --train-size, --batch-size and --steps.",
        WIDTH,
    )
    yield ""
    yield f"The best attacker on the Gaussian mechanism with {pair}, exactly:"
    yield from table(gaussian)


def paragraph(
    epsilon: float, delta: float, attacks: Sequence[Attack], unit: str | None = None
) -> str:
    """Return a paragraph on how much an attacker can learn about one person.

    Args:
        epsilon: of the guarantee.
        delta: of the guarantee.
        attacks: the best attacks, first on one record, then on groups of records.
        unit: what a record is, if it has several rows, such as "one patient: all of their images".
    """
    alone, *groups = attacks
    false, true = alone.false_positive_rates[_QUOTED], alone.true_positive_rates[_QUOTED]
    of_groups = ", ".join(
        f"{_of_100(each.true_positive_rates[_QUOTED])} for {each.records}" for each in groups
    )
    begin = f"A record is here {unit}. " if unit else ""
    return begin + (
        "Take the best attacker that there can be: one who sees all that was released, knows the method "
        "and every other record, and wants to find out whether a person's record was in the training data. "
        f"If this attacker wrongly takes {_of_100(false)} of 100 absent people for present, they recognise "
        f"at most {_of_100(true)} of 100 present people. So their word raises even odds (1 to 1) that a "
        f"person was present to at most {_up(true / false)} to 1. An attacker who has to answer for "
        "everyone, where half of the people were present, is right in at most "
        f"{_of_100((1 + alone.advantage) / 2)} of 100 cases; a coin is right in 50. "
        f"ε = {rounded_up(epsilon)} and δ = {rounded_up(delta)} limit every attacker: the share of present "
        "people that they recognise is at most "
        f"e^ε = {_power_of_e(epsilon)} times the share of absent people that they wrongly accuse, plus δ. "
        "δ is what may be given away outright: a method with this δ may disclose a record completely with "
        "that probability. A person with several records is recognised more often: with 1 of 100 absent "
        f"people wrongly accused, at most {of_groups} records, of 100 such people. Not protected: what the "
        "data shows about a whole population, which is learned whether or not a person takes part; the "
        "records of the test set, whose accuracy is exact; and what counts as public, such as the number of "
        "records and the names of the classes."
    )


def table(attacks: Sequence[Attack]) -> Iterator[str]:
    """Yield a Markdown table with a row for each group size and a column for each false positive rate."""
    rates = attacks[0].false_positive_rates
    heads = [f"recognised at {100 * each:g} % wrongly accused" for each in rates]
    yield f"| records of one person | {' | '.join(heads)} | largest advantage |"
    yield "|---:" * (len(rates) + 2) + "|"
    for each in attacks:
        shares = [f"{_of_100(rate)} %" for rate in (*each.true_positive_rates, each.advantage)]
        yield f"| {each.records} | {' | '.join(shares)} |"


def _of_100(share: float) -> str:
    """Return a share as a percentage, rounded up."""
    return _up(100 * share)


def _power_of_e(epsilon: float) -> str:
    return _up(math.exp(epsilon)) if epsilon < 700 else "more than 10^300"


def _up(number: float) -> str:
    """Round up, to two decimals below 10 and to one decimal above; whole numbers stay whole."""
    decimals = 2 if number < 10 else 1
    # Do not raise a number that exceeds a whole number only by a rounding error.
    raised = math.ceil(number * 10**decimals * (1 - 1e-12)) / 10**decimals
    return f"{raised:g}" if raised < 1e5 else f"{1.05 * raised:.1e}"
