"""The paragraph and the table that explain a guarantee, in numbers that a data protection officer can use.

All numbers are upper bounds on every attacker, rounded upwards.
"""

import math
from collections.abc import Iterator, Sequence

from dpsweep.base.numbers import rounded_up
from dpsweep.privacy.trade_off import Attack

_QUOTED = 1
"""Index of the false positive rate that the paragraph quotes: 1 %."""


def paragraph(epsilon: float, delta: float, attacks: Sequence[Attack]) -> str:
    """Return a paragraph on how much an attacker can learn about one person.

    Args:
        epsilon: of the guarantee.
        delta: of the guarantee.
        attacks: the best attacks, first on one record, then on groups of records.
    """
    alone, *groups = attacks
    false, true = alone.false_positive_rates[_QUOTED], alone.true_positive_rates[_QUOTED]
    of_groups = ", ".join(
        f"{_of_100(each.true_positive_rates[_QUOTED])} for {each.records}" for each in groups
    )
    return (
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
