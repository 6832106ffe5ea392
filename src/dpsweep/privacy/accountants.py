"""Accountants of other libraries: dp-accounting and Opacus.

dp-accounting computes with privacy loss distributions (PLD). It is fast, and checks the certified epsilons.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from decimal import Decimal

from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.pld.common import DifferentialPrivacyParameters
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from scipy.stats import binom

from dpsweep.privacy.record import Calibration
from dpsweep.privacy.tilted import mesh_width

_LARGEST_LOSS = 700.0


def pld_interval(epsilon: float, steps: int) -> float:
    """Return a discretisation interval that is fast and precise for epsilons near ``epsilon``.

    The pessimistic "connect the dots" discretisation adds a variance of order interval^2 at every
    step, so its relative error in epsilon grows with steps * interval^2 / epsilon^2. This interval
    keeps the error below about 3e-4.
    """
    return epsilon * min(3e-4, 1e-2 / math.sqrt(steps))


def pld_epsilon(
    noise_multiplier: float, sampling_rate: float, steps: int, delta: float, interval: float = 1e-4
) -> float:
    """Return an upper estimate of epsilon by dp-accounting, the worse of adding and removing.

    >>> f"{pld_epsilon(noise_multiplier=1.0, sampling_rate=0.01, steps=1000, delta=1e-5):.2f}"
    '1.83'

    Args:
        noise_multiplier: standard deviation of the noise over the sensitivity, per step.
        sampling_rate: probability that an example takes part in a step, in (0, 1].
        steps: number of steps that are composed.
        delta: of the (epsilon, delta) guarantee.
        interval: mesh of the discretised privacy loss; a smaller interval gives a smaller estimate,
            nearer to the exact epsilon.
    """
    loss = privacy_loss(noise_multiplier, sampling_rate, steps, interval)
    return float(loss.get_epsilon_for_delta(delta))


def privacy_loss(
    noise_multiplier: float, sampling_rate: float, steps: int, interval: float, records: int = 1
) -> PrivacyLossDistribution:
    """Return the privacy loss distribution of training.

    Neighbours differ in a group of k records: one dataset contains all of them, the other none. A step
    samples j of the k records with probability Binomial(k, q), and they move its sum by at most j. This
    mixture of Gaussians dominates the step (Ganesh 2024, "Tight Group-Level DP Guarantees for DP-SGD with
    Sampling via Mixture of Gaussians Mechanisms").

    Args:
        noise_multiplier: standard deviation of the noise over the sensitivity, per step.
        sampling_rate: probability that an example takes part in a step, in (0, 1].
        steps: number of steps that are composed.
        interval: mesh of the discretised privacy loss.
        records: size of the group.
    """
    if sampling_rate == 1:
        return privacy_loss_distribution.from_gaussian_mechanism(
            noise_multiplier / (records * math.sqrt(steps)), value_discretization_interval=interval
        )
    if records == 1:
        step = privacy_loss_distribution.from_gaussian_mechanism(
            noise_multiplier, sampling_prob=sampling_rate, value_discretization_interval=interval
        )
    else:
        sampled = range(records + 1)
        step = privacy_loss_distribution.from_mixture_gaussian_mechanism(
            noise_multiplier,
            list(sampled),
            [float(binom.pmf(each, records, sampling_rate)) for each in sampled],
            value_discretization_interval=interval,
        )
    return step.self_compose(steps)


def noise_interval(noise: Calibration) -> float:
    """Return a discretisation interval for the privacy loss of certified noise, near its epsilon."""
    if noise.accountant != "tilted pld":
        return pld_interval(noise.epsilon, noise.steps)
    return mesh_width(
        noise.noise_multiplier,
        noise.sampling_rate,
        noise.steps,
        noise.delta,
        3e-4 * noise.epsilon,
        noise.epsilon,
    )


def total_delta(deltas: Iterable[float]) -> float:
    """Return the sum of deltas as the decimals that users write.

    >>> total_delta([1e-5] * 3), sum([1e-5] * 3)
    (3e-05, 3.0000000000000004e-05)
    """
    return float(sum(Decimal(repr(each)) for each in deltas))


def composed_epsilon(
    trainings: Sequence[Calibration], guarantees: Sequence[tuple[float, float]], delta: float
) -> float:
    """Return the joint epsilon of several mechanisms on the same data, by dp-accounting.

    >>> from dpsweep.privacy.calibration import calibrate
    >>> noise = calibrate(epsilon=2.0, delta=1e-5, train_size=1000, batch_size=1000, steps=10)
    >>> f"{composed_epsilon([noise, noise], [], delta=2e-5):.2f}"
    '2.84'

    Args:
        trainings: noise of single training runs; their privacy losses are composed.
        guarantees: (epsilon, delta) of mechanisms without a known privacy loss.
        delta: of all together, for example the sum of all deltas.

    Returns:
        An upper bound; at the sum of all deltas, at most the sum of all epsilons. At a smaller delta it is
        infinity if an epsilon exceeds 700, because its exponential overflows in dp-accounting.
    """
    stated = [*((each.epsilon, each.delta) for each in trainings), *guarantees]
    # Basic composition.
    enough = delta >= total_delta(own for _, own in stated)
    summed = sum(each for each, _ in stated) if enough else math.inf
    if max(each for each, _ in stated) > _LARGEST_LOSS:
        return summed
    # The joint epsilon is at least the largest one. A mesh for the smallest epsilon would be slow.
    steps = max(1, sum(each.steps for each in trainings))
    interval = pld_interval(max(epsilon for epsilon, _ in stated), steps)
    # Compose equal mechanisms with themselves, which is faster.
    mechanisms = Counter(
        (each.noise_multiplier, each.sampling_rate, each.steps) for each in trainings
    )
    losses = [
        privacy_loss(*mechanism, interval).self_compose(times)
        for mechanism, times in mechanisms.items()
    ]
    for (epsilon, own), times in Counter(guarantees).items():
        parameters = DifferentialPrivacyParameters(epsilon, own)
        loss = privacy_loss_distribution.from_privacy_parameters(
            parameters, value_discretization_interval=interval
        )
        losses.append(loss.self_compose(times))
    return min(summed, float(_all_of(losses).get_epsilon_for_delta(delta)))


def _all_of(losses: list[PrivacyLossDistribution]) -> PrivacyLossDistribution:
    """Compose in pairs, then in pairs of pairs, which is faster than one after the other."""
    while len(losses) > 1:
        pairs = zip(losses[::2], losses[1::2], strict=False)
        alone = losses[-1:] if len(losses) % 2 else []
        losses = [one.compose(other) for one, other in pairs] + alone
    return losses[0]


def opacus_epsilon(
    noise_multiplier: float, sampling_rate: float, steps: int, delta: float, epsilon_error: float
) -> float:
    """Return the upper bound on epsilon of Opacus' PRV accountant, for removing an example.

    Args:
        noise_multiplier: standard deviation of the noise over the sensitivity, per step.
        sampling_rate: probability that an example takes part in a step, in (0, 1].
        steps: number of steps that are composed.
        delta: of the (epsilon, delta) guarantee.
        epsilon_error: by which the bound exceeds the accountant's estimate. Time and memory grow with
            its inverse.
    """
    # Imported here because it imports torch, which is slow.
    from opacus.accountants import PRVAccountant  # noqa: PLC0415

    accountant = PRVAccountant()
    accountant.history = [(noise_multiplier, sampling_rate, steps)]
    return float(accountant.get_epsilon(delta, eps_error=epsilon_error))
