"""Trade-off curves of training: the best attacker's error rates on one person, in numbers and in words.

An attacker sees everything that training released, and knows everything else except its randomness. They
decide whether a group of records (for example, all of one person) was in the training set. Their false
positive rate is the share of absent groups that they take for present. Their true positive rate is the
share of present groups that they recognise. Each (epsilon, delta) of a mechanism bounds every attacker
(Kairouz, Oh and Viswanath 2015, "The Composition Theorem for Differential Privacy"):

    TPR <= exp(epsilon) FPR + delta,   1 - FPR <= exp(epsilon) (1 - TPR) + delta,

All these pairs together, its privacy profile, give the best attacker's curve (Dong, Roth and Su 2022,
"Gaussian Differential Privacy"). Curves here come from the privacy loss of the mechanism. They are upper
bounds: privacy loss is discretised pessimistically, rounding has its allowance, and the profile is evaluated
at finitely many epsilons, each with a valid bound. Both directions are bounded: an attacker who searches for
present records, and one who searches for absent records.

A paragraph and a table say it in numbers that a data protection officer can use. All numbers are upper bounds
on every attacker, rounded upwards.
"""

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

import numpy as np
import numpy.typing as npt
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from pydantic import Field, StrictFloat, StrictInt
from pydantic.dataclasses import dataclass as checked_dataclass
from scipy.special import ndtr, ndtri

from dpsweep.base.formatting import rounded_up
from dpsweep.privacy import accountants
from dpsweep.privacy.calibration import calibrate
from dpsweep.privacy.noise import Calibration, CalibrationError, Sampling, checked_target
from dpsweep.privacy.tuning import TuningNoise, trial_profile

Floats = npt.NDArray[np.float64]
Rate = Annotated[StrictFloat, Field(ge=0, le=1)]

FALSE_POSITIVE_RATES = (0.001, 0.01, 0.05)
GROUPS = (1, 2, 5, 10)
"""Numbers of records that one person may have."""

# Epsilons above 25 change the rates by less than 10^-10.
_EPSILONS = np.concatenate([[0.0], np.geomspace(1e-4, 1, 2000), np.linspace(1, 25, 2401)[1:]])
# A coarser mesh for groups. It raises the rates by at most a few thousandths of their values.
_GROUP_INTERVAL = 4


@dataclass(frozen=True)
class GaussianTradeOff:
    """The exact curve of a Gaussian mechanism, such as full-batch training.

    >>> curve = GaussianTradeOff(mu=1.0)
    >>> f"{curve.true_positive_rate(0.01):.4f}", f"{curve.advantage:.4f}"
    ('0.0924', '0.3829')

    Attributes:
        mu: sensitivity over the standard deviation of the noise; k sqrt(T) / sigma for k records and
            T steps of the full batch.
    """

    mu: float

    def true_positive_rate(self, false_positive_rate: float) -> float:
        """Return the best attacker's true positive rate at a false positive rate; both in [0, 1]."""
        return float(ndtr(ndtri(false_positive_rate) + self.mu))

    def false_positive_rate(self, true_positive_rate: float) -> float:
        """Return the least false positive rate that allows a true positive rate; both in [0, 1]."""
        return float(ndtr(ndtri(true_positive_rate) - self.mu))

    @property
    def advantage(self) -> float:
        """The largest difference of both rates, in [0, 1]."""
        return float(2 * ndtr(self.mu / 2) - 1)


@dataclass(frozen=True)
class GuaranteedTradeOff:
    """The best attacker's trade-off curve under several (epsilon, delta).

    Attributes:
        epsilons: at least 0, shape (n,).
        removing: delta for each epsilon when records are removed, shape (n,).
        adding: delta for each epsilon when records are added, shape (n,).
    """

    epsilons: Floats
    removing: Floats
    adding: Floats

    def true_positive_rate(self, false_positive_rate: float) -> float:
        """Return an upper bound on that of `GaussianTradeOff`: the worse of both directions."""
        return max(
            self._rate(false_positive_rate, self.removing, self.adding),
            self._rate(false_positive_rate, self.adding, self.removing),
        )

    def _rate(self, false_positive_rate: float, delta: Floats, reverse: Floats) -> float:
        factor = np.exp(np.minimum(self.epsilons, 700))
        bounds = (
            factor * false_positive_rate + delta,
            1 - np.maximum(0, 1 - reverse - false_positive_rate) / factor,
        )
        return min(1.0, float(np.min(bounds)))

    def false_positive_rate(self, true_positive_rate: float) -> float:
        """Return a lower bound, from the concave curve above the curves of both directions."""
        delta, factor = self._larger, np.exp(np.minimum(self.epsilons, 700))
        bounds = (
            (true_positive_rate - delta) / factor,
            1 - delta - factor * (1 - true_positive_rate),
        )
        return max(0.0, float(np.max(bounds)))

    @property
    def _larger(self) -> Floats:
        return np.maximum(self.removing, self.adding)

    @property
    def advantage(self) -> float:
        """An upper bound on the largest difference of both rates, in [0, 1]."""
        delta, gone = self._larger, np.exp(-self.epsilons)
        return min(1.0, float(np.min((1 - gone + 2 * delta * gone) / (1 + gone))))

    def of_group(self, records: int) -> "GuaranteedTradeOff":
        """Return the curve for a group of records if this curve is for one record (group privacy).

        (epsilon, delta) for one implies (k epsilon, delta (1 + ... + exp((k - 1) epsilon))) for k records.
        """
        factor = np.exp(np.minimum(np.outer(np.arange(records), self.epsilons), 700)).sum(axis=0)
        deltas = (np.minimum(1, factor * each) for each in (self.removing, self.adding))
        return GuaranteedTradeOff(records * self.epsilons, *deltas)


TradeOff = GaussianTradeOff | GuaranteedTradeOff
"""The best attacker's curve: exact, or bounds on it."""


def guarantee_trade_off(epsilon: float, delta: float, records: int = 1) -> GuaranteedTradeOff:
    """Return the best attacker's curve for any mechanism with (epsilon, delta).

    >>> f"{guarantee_trade_off(epsilon=1.0, delta=1e-5).true_positive_rate(0.01):.4f}"
    '0.0272'

    Args:
        epsilon: at least 0.
        delta: in [0, 1).
        records: size of the group.
    """
    return GuaranteedTradeOff(*np.array([[epsilon], [delta], [delta]])).of_group(records)


def claimed_gaussian(epsilon: float, delta: float, records: int = 1) -> GaussianTradeOff:
    """Return the curve of the Gaussian mechanism that has exactly this (epsilon, delta).

    Args:
        epsilon: positive.
        delta: in (0, 1).
        records: size of the group.

    Raises:
        CalibrationError: the target is too extreme for floating point.
    """
    return GaussianTradeOff(records / accountants.gaussian_noise_multiplier(epsilon, delta))


def training_trade_off(noise: Calibration, records: int = 1) -> TradeOff:
    """Return the curve of training with calibrated noise; see `mechanism_trade_off`.

    Args:
        noise: of training with privacy.
        records: size of the group; all of its records are in the training set, or none.
    """
    return mechanism_trade_off(noise.epsilon, noise.noise_multiplier, noise.sampling, records)


@lru_cache(maxsize=64)
def mechanism_trade_off(
    epsilon: float, noise_multiplier: float, sampling: Sampling, records: int = 1
) -> TradeOff:
    """Return the curve of training with a noise multiplier; the claimed epsilon does not matter.

    The full batch has the closed form of a Gaussian mechanism. Other batches use the pessimistic
    privacy loss distribution of their sampled steps.

    >>> curve = mechanism_trade_off(1.0, 4.0, Sampling(100, 100, steps=16))
    >>> f"{curve.true_positive_rate(0.01):.4f}"
    '0.0924'

    Args:
        epsilon: approximate epsilon of one record; it sets only the mesh of the distribution.
        noise_multiplier: sigma.
        sampling: of the training.
        records: size of the group; all of its records are in the training set, or none.
    """
    steps = sampling.steps
    if sampling.full_batch:
        return GaussianTradeOff(records * steps**0.5 / noise_multiplier)
    # A group of k records has about k times the privacy loss of one record.
    interval = accountants.pld_interval(records * epsilon, steps)
    interval *= 1 if records == 1 else _GROUP_INTERVAL
    loss = accountants.privacy_loss(noise_multiplier, sampling.rate, steps, interval, records)
    return GuaranteedTradeOff(_EPSILONS, *_deltas_of_both_directions(loss, steps))


def _deltas_of_both_directions(loss: PrivacyLossDistribution, steps: int) -> tuple[Floats, Floats]:
    removing, adding = (
        np.minimum(1, pmf.get_delta_for_epsilon(_EPSILONS) + accountants.rounding_allowance(steps))
        for pmf in (loss._pmf_remove, loss._pmf_add)
    )
    return removing, adding


def tuned_trade_off(noise: TuningNoise) -> GuaranteedTradeOff:
    """Return a bound on the curve for the best of a random number of trials.

    Its privacy loss is unknown. But the bound of `dpsweep.privacy.tuning` holds at every epsilon:
    (e + (shape + 1) second_epsilon, mean delta(e)) for every e >= 0, where delta(e) is the profile of
    the trials and their score.
    """
    profile = trial_profile(noise)
    own = np.linspace(0, 2 * noise.first_epsilon, 400)
    delta = np.array([min(1.0, noise.mean_trials * profile(each)) for each in own])
    epsilons = own + (noise.shape + 1) * noise.second_epsilon
    return GuaranteedTradeOff(epsilons, delta, delta)


@checked_dataclass(frozen=True)
class Attack:
    """The rates of the best attacker on a group of records.

    Attributes:
        records: size of the group.
        false_positive_rates: shares of absent groups that are taken for present.
        true_positive_rates: the largest share of recognised present groups at each false positive rate.
        advantage: the largest difference of both rates over all false positive rates.
    """

    records: Annotated[StrictInt, Field(ge=1)]
    false_positive_rates: list[Rate]
    true_positive_rates: list[Rate]
    advantage: Rate


def best_attack(curve: TradeOff, records: int) -> Attack:
    """Return the rates of the best attacker on a group.

    >>> attack = best_attack(claimed_gaussian(epsilon=1.0, delta=1e-5), records=1)
    >>> [f"{rate:.4f}" for rate in attack.true_positive_rates], f"{attack.advantage:.3f}"
    (['0.0024', '0.0198', '0.0843'], '0.107')

    Args:
        curve: for this group.
        records: size of the group.
    """
    rates = list(FALSE_POSITIVE_RATES)
    return Attack(
        records, rates, [curve.true_positive_rate(each) for each in rates], curve.advantage
    )


def attacks_on_training(noise: Calibration) -> list[Attack]:
    """Return the best attack on training for each group size."""
    return [best_attack(training_trade_off(noise, each), each) for each in GROUPS]


def attacks_on_tuning(noise: TuningNoise) -> list[Attack]:
    """Return a bound on the best attack on accounted tuning for each group size.

    Bounds for several records follow by group privacy, which is coarse.
    """
    alone = tuned_trade_off(noise)
    return [best_attack(alone.of_group(each), each) for each in GROUPS]


# -- in words ---------------------------------------------------------------------------------

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
