"""Accountants: of the full batch in closed form, and those of dp-accounting, prv-accountant and Opacus.

The certificate of sampled batches is the bound of dp-accounting. It splits each privacy loss of a step
between the two nearest points of a mesh so that its probabilities under both neighbours stay ("Connect the
Dots", Doroshenko, Ghazi, Kamath, Kumar and Manurangsi 2022), and composes this privacy loss distribution
(PLD) by a fast Fourier transform. Split losses can be merged again, so the result dominates the steps on
every mesh; a coarse mesh only loosens the bound. Both directions of add/remove adjacency are computed, and
the larger epsilon counts.

The theorem is about real numbers. `rounding_allowance` is what floating point may hide of delta; every
proven bound is for a delta that is smaller by so much.

prv-accountant (Gopi, Lee and Wutschitz 2021, "Numerical Composition of Differential Privacy") and Opacus
share no code with dp-accounting, and check it.

Every step on the full batch is a Gaussian mechanism of sensitivity 1, and T of them with noise multiplier
sigma are one with sigma / sqrt(T). Its privacy curve is known in closed form (Balle and Wang 2018, "Improving
the Gaussian Mechanism for Differential Privacy", theorem 8) and is the same for adding and for removing an
example.
"""

import math
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from decimal import Decimal

from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.pld.common import DifferentialPrivacyParameters
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss
from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant
from prv_accountant.other_accountants import RDP
from scipy.optimize import brentq
from scipy.special import log_ndtr
from scipy.stats import binom

from dpsweep.base.formatting import rounded_up
from dpsweep.privacy.noise import Calibration, CalibrationError, Sampling

_LARGEST_LOSS = 700.0
# By how much the mesh of a certificate raises epsilon, about, as a share of it.
MESH_ERROR = 3e-4
# Cells of one step's privacy loss; so many take one to three seconds and 0.5 GB.
_MOST_CELLS = 2**18
# prv-accountant runs on meshes of up to so many cells, which take a second.
_MOST_PRV_CELLS = 2**18
# A step without any record of a group that is rarer counts as one with all of them, which bounds it from
# above: dp-accounting fails where the difference from 1 is rounding.
_RARELY_NONE = 1e-12
_MOST_STEPS = 10**7  # they take a minute and 1 GB; both grow with the steps
# Its bounds are this share of epsilon, or of 1, away from its estimate, which is far closer; the second share
# is for a mesh that it refuses as too coarse.
_PRV_ERRORS = 0.05, 0.005
# Rényi divergences of these orders say how far its mesh must reach. With its own 151 orders it reaches about
# as far, and takes twice as long.
_RENYI_ORDERS = [1.25, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]
_RELATIVE_TOLERANCE = 1e-13  # of roots in closed form
# Far wider than any real setting; no intermediate value overflows or underflows inside it.
_LOG_SIGMA_RANGE = (math.log(1e-4), math.log(1e9))


def gaussian_delta(epsilon: float, noise_multiplier: float, steps: int = 1) -> float:
    """Return the smallest delta for which full-batch training is (epsilon, delta)-DP.

    >>> f"{gaussian_delta(epsilon=1.0, noise_multiplier=3.73):.2g}"
    '1e-05'

    Args:
        epsilon: at least 0.
        noise_multiplier: standard deviation of the noise over the sensitivity, per step.
        steps: number of steps that are composed.
    """
    sigma = noise_multiplier / math.sqrt(steps)
    upper = log_ndtr(0.5 / sigma - epsilon * sigma)
    lower = epsilon + log_ndtr(-0.5 / sigma - epsilon * sigma)
    # Phi(a) - e^epsilon Phi(b), as one product because exp(epsilon) alone would overflow.
    return float(-math.exp(upper) * math.expm1(min(lower - upper, 0.0)))


def gaussian_epsilon(delta: float, noise_multiplier: float, steps: int = 1) -> float:
    """Return the smallest epsilon >= 0 for which full-batch training is (epsilon, delta)-DP.

    >>> f"{gaussian_epsilon(delta=1e-5, noise_multiplier=3.73):.3f}"
    '1.000'
    """
    if gaussian_delta(0.0, noise_multiplier, steps) <= delta:
        return 0.0

    def excess(epsilon: float) -> float:
        return math.log(max(gaussian_delta(epsilon, noise_multiplier, steps), 1e-300) / delta)

    upper = 1.0
    while excess(upper) > 0:
        upper *= 2
    return float(brentq(excess, 0.0, upper, xtol=1e-300, rtol=_RELATIVE_TOLERANCE))


def gaussian_noise_multiplier(epsilon: float, delta: float, steps: int = 1) -> float:
    """Return the smallest noise multiplier for which full-batch training is (epsilon, delta)-DP.

    >>> f"{gaussian_noise_multiplier(epsilon=1.0, delta=1e-5):.3f}"
    '3.731'

    Raises:
        CalibrationError: the target is too extreme for floating point.
    """

    def excess(log_sigma: float) -> float:
        return math.log(max(gaussian_delta(epsilon, math.exp(log_sigma)), 1e-300) / delta)

    lower, upper = _LOG_SIGMA_RANGE
    if not excess(lower) > 0 > excess(upper):
        raise CalibrationError(
            f"epsilon = {epsilon}, delta = {delta} needs a noise multiplier outside "
            f"[{math.exp(lower):.0e}, {math.exp(upper):.0e}] per full-batch step: choose a target "
            "nearer to common practice"
        )
    log_sigma = brentq(excess, lower, upper, xtol=1e-14, rtol=_RELATIVE_TOLERANCE)
    sigma = math.exp(log_sigma) * math.sqrt(steps)
    # Rounding may have put the root on either side: move it to the private side.
    margin = _RELATIVE_TOLERANCE
    while gaussian_epsilon(delta, sigma, steps) > epsilon:
        sigma *= 1 + margin
        margin *= 2
    return sigma


def rounding_allowance(steps: int) -> float:
    """Return the part of delta that is left to errors of floating point.

    A test composes three settings in 80 bits: the errors are more than ten times smaller.
    """
    return (steps + 16) * 2.0**-47


def _refuse_too_many(steps: int) -> None:
    if steps > _MOST_STEPS:
        raise CalibrationError(
            f"steps: found {steps:,}; allowed: up to {_MOST_STEPS:,}, beyond which accountants take hours "
            "and all memory"
        )


def certified_bound(
    noise_multiplier: float, sampling: Sampling, delta: float, about: float, coarser: float = 1.0
) -> float:
    """Return a proven upper bound on the epsilon of training on sampled batches.

    >>> f"{certified_bound(1.0, Sampling(50_000, 500, steps=1000), 1e-5, about=1.8):.3f}"
    '1.829'

    Args:
        noise_multiplier: sigma.
        sampling: of the training, not with the full batch.
        delta: of the (epsilon, delta) guarantee.
        about: approximate epsilon; with it, the bound exceeds epsilon by about `MESH_ERROR`.
        coarser: factor of the mesh width, for a faster and looser bound.

    Raises:
        CalibrationError: the allowance for rounding is more than a tenth of delta, or there are more than
            10 million steps.
    """
    _refuse_too_many(sampling.steps)
    allowance = rounding_allowance(sampling.steps)
    if delta < 10 * allowance:
        raise CalibrationError(
            f"delta = {delta:g} is too small: double precision cannot resolve it for {sampling.steps} "
            f"steps; use a delta of at least {rounded_up(10 * allowance, 2)}"
        )
    # Splitting adds about T (t + 1) h^2 / 12 on a mesh of width h, with t = 2 log(1/delta) / epsilon.
    share = min(2e-3, math.sqrt(6 * MESH_ERROR / (sampling.steps * -math.log(delta))))
    interval = max(share * about, _finest_interval(noise_multiplier, sampling.rate))
    return pld_epsilon(
        noise_multiplier, sampling.rate, sampling.steps, delta - allowance, coarser * interval
    )


def _finest_interval(noise_multiplier: float, sampling_rate: float) -> float:
    """Return the interval at which the privacy loss of a step has `_MOST_CELLS` cells."""
    ranges = (
        GaussianPrivacyLoss(
            noise_multiplier, sampling_prob=sampling_rate, adjacency_type=each
        ).connect_dots_bounds()
        for each in (AdjacencyType.ADD, AdjacencyType.REMOVE)
    )
    width = max(each.epsilon_upper - each.epsilon_lower for each in ranges)
    return float(width) / _MOST_CELLS


def prv_epsilon(
    noise_multiplier: float, sampling: Sampling, delta: float, about: float
) -> float | None:
    """Return the estimate of prv-accountant for removing an example; None if it takes more than seconds.

    Args:
        noise_multiplier: sigma.
        sampling: of the training, not with the full batch.
        delta: of the (epsilon, delta) guarantee.
        about: approximate epsilon.
    """
    mechanism = PoissonSubsampledGaussianMechanism(sampling.rate, noise_multiplier)
    outside, steps = delta / 1000, sampling.steps
    # Remark 5.6 of Gopi et al.: losses of all steps, and of one, are rarely beyond.
    divergences = RDP([mechanism], _RENYI_ORDERS)
    tails = (outside / 4, steps), (outside / 8 / steps, 1)
    losses = max(divergences.compute_epsilon(tail, [times])[1] for tail, times in tails)
    for share in _PRV_ERRORS:
        error = share * min(about, 1)
        reach = max(losses, error) + 3
        cells = 2 * reach / error * math.sqrt(steps / 2 * math.log(12 / outside))
        if not cells <= _MOST_PRV_CELLS:
            return None
        try:
            with warnings.catch_warnings(action="ignore"):  # it warns that `reach` is given
                accountant = PRVAccountant(mechanism, error, outside, steps, eps_max=reach)
        except RuntimeError:  # a few steps are too coarse on this mesh
            continue
        return float(accountant.compute_epsilon(delta, [steps])[1])
    return None


def pld_interval(epsilon: float, steps: int) -> float:
    """Return a discretisation interval that is fast and precise for epsilons near ``epsilon``.

    The pessimistic "connect the dots" discretisation adds a variance of order interval^2 at every
    step, so its relative error in epsilon grows with steps * interval^2 / epsilon^2. This interval
    keeps the error below about 3e-4.

    Raises:
        CalibrationError: there are more than 10 million steps.
    """
    _refuse_too_many(steps)
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
        shares = [float(binom.pmf(each, records, sampling_rate)) for each in sampled]
        if shares[0] < _RARELY_NONE:
            shares[0], shares[-1] = 0.0, shares[-1] + _RARELY_NONE
        step = privacy_loss_distribution.from_mixture_gaussian_mechanism(
            noise_multiplier, list(sampled), shares, value_discretization_interval=interval
        )
    return step.self_compose(steps)


def profile_interval(noise: Calibration) -> float:
    """Return a discretisation interval for the privacy profile of certified noise, from half its epsilon."""
    return max(
        pld_interval(noise.epsilon / 2, noise.steps),
        _finest_interval(noise.noise_multiplier, noise.sampling_rate),
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
    found = _all_of(losses).get_epsilon_for_delta(delta - rounding_allowance(steps))
    return min(summed, float(found))


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
