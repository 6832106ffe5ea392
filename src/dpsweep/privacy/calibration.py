"""Calibration: find a certified noise multiplier that is hardly larger than necessary.

The full batch has a closed form. Otherwise a fast accountant (PLD) proposes a noise multiplier, the
PRV accountant certifies it, and PLD checks it independently. If the meshes of these two accountants
would be too large, the tilted accountant proposes and certifies, and PLD checks on another mesh.
"""

import logging
import math
import time
import warnings
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from scipy.optimize import brentq

from dpsweep.base.numbers import real, rounded_up
from dpsweep.privacy import prv
from dpsweep.privacy.accountants import opacus_epsilon, pld_epsilon, pld_interval
from dpsweep.privacy.gaussian import gaussian_epsilon, gaussian_noise_multiplier
from dpsweep.privacy.prv import PrivacyLoss, prv_epsilon
from dpsweep.privacy.record import Calibration
from dpsweep.privacy.sampling import CalibrationError, Sampling
from dpsweep.privacy.tilted import directed_epsilon, mesh_width, smallest_delta, tilted_epsilon

log = logging.getLogger(__name__)

# The certificate may exceed the exact epsilon by this share, which raises the noise by about as much.
CERTIFICATE_ERROR = 5e-4
# The certified epsilon lies in [1 - SLACK, 1] times the target. A looser bound wastes noise.
SLACK = 1e-3
# If two accountants differ by more, one of them is wrong.
CROSS_CHECK_TOLERANCE = 0.01
# Noise multipliers outside this range are useless, and accountants are imprecise there.
NOISE_MULTIPLIER_RANGE = (0.1, 1e6)
# The same for the noise of all steps on the full batch, which has a closed form.
_FULL_BATCH_RANGE = (1e-4, 1e9)
# Above these limits, searches by PLD and PRV take minutes: mesh cells of one step's privacy loss in PLD,
# and steps. The paper's settings have at most 45,000 cells and 10,875 steps.
_LARGEST_PLD_MESH = 100_000
_MOST_PRV_STEPS = 2**14
# Relative error of the tilted accountant's bounds while it proposes noise.
_PROPOSAL_ERROR = 1.5e-3
# Relative errors of the check by PLD: first on a coarse mesh, then on a finer one if the first is too large.
_CHECK_ERRORS = 3e-3, 3e-4
# Machines may differ in the last digits.
_ROUNDING = 1e-9
# A longer search logs a message.
_SECONDS_OF_SILENCE = 3.0


class PrivacyTarget(NamedTuple):
    """The target (epsilon, delta) of training."""

    epsilon: float
    delta: float
    sampling: Sampling


class _Certified(NamedTuple):
    """The fields of a `Calibration` that accountants compute."""

    noise_multiplier: float
    certified_epsilon: float
    accountant: str
    pld_epsilon: float


def calibrate(
    epsilon: float,
    delta: float,
    train_size: int,
    batch_size: int,
    steps: int,
    *,
    check_with_opacus: bool = False,
) -> Calibration:
    """Return certified noise for training with Poisson-sampled batches, close to the least possible.

    >>> noise = calibrate(epsilon=2, delta=1e-5, train_size=50_000, batch_size=1024, steps=391)
    >>> f"{noise.noise_multiplier:.3f}", f"{noise.certified_epsilon:.3f}", noise.accountant
    ('1.126', '2.000', 'prv')

    Args:
        epsilon: the target, positive; infinity for training without privacy.
        delta: of the (epsilon, delta) guarantee, in (0, 1). Warns unless below 1 / train_size.
        train_size: N, the number of training examples.
        batch_size: B, the expected batch size, at most N; N is the full batch.
        steps: T, the number of optimiser steps.
        check_with_opacus: run Opacus' accountant too, which imports torch.

    Raises:
        CalibrationError: invalid input, an unreachable target, an accountant that failed, or
            accountants that disagree.
    """
    sampling = Sampling(train_size, batch_size, steps)
    return calibrate_sampling(epsilon, delta, sampling, check_with_opacus=check_with_opacus)


def calibrate_sampling(
    epsilon: float, delta: float, sampling: Sampling, *, check_with_opacus: bool = False
) -> Calibration:
    """Return the noise of `calibrate` for training with a sampling; see there.

    Args:
        epsilon: the target; infinity for training without privacy.
        delta: the target.
        sampling: N, B and T.
        check_with_opacus: whether to compute epsilon with the accountant of Opacus too.
    """
    epsilon, delta = _check_target(epsilon, delta)
    if delta * sampling.units >= 1 and not math.isinf(epsilon):
        warnings.warn(
            f"delta = {delta} is not below 1 / train_size = {1 / sampling.units:.2g}: such a guarantee "
            "lets an algorithm publish an example outright. Use a smaller delta",
            stacklevel=3,
        )
    target = PrivacyTarget(epsilon, delta, sampling)
    certified = _certified_noise(target)
    opacus, note = None, "not asked for"
    if check_with_opacus:
        opacus, note = _ask_opacus(target, certified.noise_multiplier)
    return Calibration(
        epsilon=epsilon,
        delta=delta,
        train_size=sampling.units,
        batch_size=sampling.batch_size,
        steps=sampling.steps,
        **certified._asdict(),
        opacus_epsilon=opacus,
        opacus_note=note,
    )


def certify_again(noise: Calibration) -> Calibration:
    """Run both accountants at a calibration's own noise multiplier, sampling rate, steps and delta.

    Args:
        noise: of training with privacy; the results of accountants in it are ignored.

    Returns:
        The noise with new results, the same as those of `calibrate`.

    Raises:
        CalibrationError: a number is out of range, the noise multiplier is certified for a larger epsilon
            or a much smaller one, or the accountants disagree.
    """
    _check_target(noise.epsilon, noise.delta)
    target = PrivacyTarget(noise.epsilon, noise.delta, noise.sampling)
    lowest, highest = NOISE_MULTIPLIER_RANGE
    if target.sampling.full_batch:
        lowest, highest = (math.sqrt(noise.steps) * end for end in _FULL_BATCH_RANGE)
    if not lowest <= noise.noise_multiplier <= highest:
        raise CalibrationError(
            f"noise_multiplier: found {noise.noise_multiplier}, expected one in "
            f"[{lowest:g}, {highest:g}]"
        )
    proven = proven_epsilon(target, noise.noise_multiplier)
    certified = _cross_checked(target, noise.noise_multiplier, proven)
    return replace(noise, **certified._asdict(), opacus_epsilon=None, opacus_note="not asked for")


def verify(noise: Calibration) -> None:
    """Certify a calibration again.

    Raises:
        CalibrationError: as `certify_again`; the certified epsilon is another one; or there is noise at
            infinite epsilon.
    """
    private = math.isfinite(noise.epsilon)
    expected = certify_again(noise).certified_epsilon if private else math.inf
    if not math.isclose(noise.certified_epsilon, expected, rel_tol=_ROUNDING):
        raise CalibrationError(
            f"certified_epsilon: found {noise.certified_epsilon}, expected {expected:.6g}"
        )
    if not private and noise.noise_multiplier:
        raise CalibrationError(
            f"noise_multiplier: found {noise.noise_multiplier}, expected 0, because epsilon is infinite"
        )


def noise_multiplier(epsilon: float, delta: float, sampling: Sampling) -> float:
    """Return a certified noise multiplier; see `calibrate` for the conditions.

    >>> f"{noise_multiplier(epsilon=1, delta=1e-5, sampling=Sampling(1000, 1000, steps=8)):.3f}"
    '10.552'

    Args:
        epsilon: the target, positive; infinity gives 0.
        delta: of the (epsilon, delta) guarantee, in (0, 1).
        sampling: of the training.

    Raises:
        CalibrationError: as `calibrate`.
    """
    epsilon, delta = _check_target(epsilon, delta)
    return _certified_noise(PrivacyTarget(epsilon, delta, sampling)).noise_multiplier


def _check_target(epsilon: float, delta: float) -> tuple[float, float]:
    """Return both in float64, because bounds computed in float32 do not hold."""
    epsilon = real("epsilon", epsilon, CalibrationError)
    delta = real("delta", delta, CalibrationError)
    if not epsilon > 0:
        raise CalibrationError(
            f"epsilon = {epsilon:g}: it must be positive (infinity is training without privacy)"
        )
    if not 0 < delta < 1:
        raise CalibrationError(f"delta = {delta:g}: it must lie strictly between 0 and 1")
    return epsilon, delta


def _certified_noise(target: PrivacyTarget) -> _Certified:
    if math.isinf(target.epsilon):
        return _Certified(0.0, math.inf, "none", math.inf)
    if target.sampling.full_batch:
        sigma = gaussian_noise_multiplier(target.epsilon, target.delta, target.sampling.steps)
        certified = proven_epsilon(target, sigma)
    else:
        sigma, certified = _search(target)
    return _cross_checked(target, sigma, certified)


def proven_epsilon(target: PrivacyTarget, sigma: float) -> float:
    """Return the epsilon that the target's accountant proves for a noise multiplier."""
    epsilon, delta, sampling = target
    rate, steps, error = sampling.rate, sampling.steps, CERTIFICATE_ERROR * epsilon
    match accountant(target):
        case "analytic gaussian":
            return gaussian_epsilon(delta, sigma, steps)
        case "prv":
            return prv_epsilon(sigma, rate, steps, delta, error)
        case _:
            return tilted_epsilon(sigma, rate, steps, delta, error)


def accountant(target: PrivacyTarget) -> str:
    """Return the name of the accountant for a target: "analytic gaussian", "prv" or "tilted pld".

    Raises:
        CalibrationError: delta is too small for all accountants.
    """
    epsilon, delta, sampling = target
    steps = sampling.steps
    if sampling.full_batch:
        return "analytic gaussian"
    if delta < smallest_delta(steps):
        raise CalibrationError(
            f"delta = {delta:g} is too small: double precision cannot resolve it for {steps} steps; "
            f"use a delta of at least {rounded_up(smallest_delta(steps), 2)}"
        )
    losses = sum(PrivacyLoss(_gaussian_guess(target), sampling.rate, "remove").extremes(-50.0))
    slow = losses > _LARGEST_PLD_MESH * pld_interval(epsilon, steps)
    return (
        "tilted pld"
        if slow or steps > _MOST_PRV_STEPS or delta < prv.smallest_delta(steps)
        else "prv"
    )


def second_epsilon(target: PrivacyTarget, sigma: float) -> float:
    """Return epsilon by PLD of dp-accounting, which is independent of the certificate."""
    epsilon, delta, sampling = target
    rate, steps = sampling.rate, sampling.steps
    if accountant(target) != "tilted pld":
        return pld_epsilon(sigma, rate, steps, delta, pld_interval(epsilon, steps))
    for error in _CHECK_ERRORS:
        interval = mesh_width(sigma, rate, steps, delta, error * epsilon, epsilon)
        found = pld_epsilon(sigma, rate, steps, delta, interval)
        # Rare large losses can raise epsilon by more than the intended error: then use a finer mesh.
        if found <= (1 + CROSS_CHECK_TOLERANCE / 2) * epsilon:
            break
    return found


def _cross_checked(target: PrivacyTarget, sigma: float, certified: float) -> _Certified:
    """Return a certified epsilon with its accountant and epsilon by PLD.

    Raises:
        CalibrationError: the certified epsilon is not just below the target, or PLD disagrees.
    """
    epsilon, delta, sampling = target
    name = accountant(target)
    if not (1 - SLACK) * epsilon <= certified <= epsilon:
        raise CalibrationError(
            f"the {name} accountant certifies epsilon {certified:.6g} at noise multiplier "
            f"{sigma:.6g}, outside [{1 - SLACK}, 1] times the target {epsilon}"
        )
    pld = second_epsilon(target, sigma)
    if not abs(pld - certified) <= CROSS_CHECK_TOLERANCE * certified:
        raise CalibrationError(
            f"accountants disagree at noise multiplier {sigma:.6g}, sampling rate "
            f"{sampling.rate:.6g}, {sampling.steps} steps, delta {delta}: {name} certifies epsilon "
            f"{certified:.6g}, PLD finds {pld:.6g}. None of them is used"
        )
    return _Certified(sigma, certified, name, pld)


def _search(target: PrivacyTarget) -> tuple[float, float]:
    """Return a noise multiplier that is certified within SLACK, and the certified epsilon."""
    epsilon, delta, sampling = target
    tilted = accountant(target) == "tilted pld"
    # Without noise, delta is the probability that the example is sampled in any step.
    if sampled_at_all(sampling) <= delta:
        raise CalibrationError(
            f"delta = {delta} is not below the probability that an example is sampled at all "
            f"(sampling rate {sampling.rate:.3g}, {sampling.steps} steps): no noise would be needed and "
            "nothing would be private. Use a smaller delta"
        )
    aim = epsilon if tilted else epsilon * (1 - CERTIFICATE_ERROR - SLACK / 5)
    started = time.monotonic()
    for _ in range(5):
        sigma = _proposed_noise(target._replace(epsilon=aim), tilted, started)
        certified = proven_epsilon(target, sigma)
        if (1 - SLACK) * epsilon <= certified <= epsilon:
            return sigma, certified
        # The certificate is looser (very many steps) or tighter than assumed: adjust the aim.
        aim *= epsilon * (1 - SLACK / 2) / certified
    return sigma, certified


def sampled_at_all(sampling: Sampling) -> float:
    """Return the probability that a unit takes part in any step of sampled batches."""
    return -math.expm1(sampling.steps * math.log1p(-sampling.rate))


def _proposed_noise(target: PrivacyTarget, tilted: bool, started: float) -> float:
    """Return the noise multiplier for which a fast accountant finds the epsilon of a target.

    Args:
        target: of the training.
        tilted: whether the accountant is the tilted one, for removing an example, or PLD.
        started: start of the search, by `time.monotonic`.
    """
    epsilon, delta, sampling = target
    rate, steps = sampling.rate, sampling.steps
    interval, error = pld_interval(epsilon, steps), _PROPOSAL_ERROR * epsilon

    def epsilon_of(sigma: float) -> float:
        if tilted:
            loss = PrivacyLoss(sigma, rate, "remove")
            return directed_epsilon(loss, steps, delta, error)
        return pld_epsilon(sigma, rate, steps, delta, interval)

    silent = True

    @cache
    def excess(log_sigma: float) -> float:
        """Return log(found / target epsilon), clipped to [-1, 1]; it falls with sigma."""
        nonlocal silent
        if silent and time.monotonic() - started > _SECONDS_OF_SILENCE:
            silent = False
            log.warning(
                "still looking for the noise of epsilon %.4g, delta %g, sampling rate %.3g, %d steps: the "
                "noise multiplier is about %.3g",
                *(epsilon, delta, rate, steps, math.exp(log_sigma)),
            )
        found = epsilon_of(math.exp(log_sigma))
        return max(-1.0, min(1.0, math.log(max(found / epsilon, 0.1))))

    lowest, highest = map(math.log, NOISE_MULTIPLIER_RANGE)

    def bounded(log_sigma: float) -> float:
        if not lowest <= log_sigma <= highest:
            raise CalibrationError(
                f"epsilon = {epsilon:.4g}, delta = {delta}, sampling rate {rate:.3g}, "
                f"{steps} steps needs a noise multiplier outside {list(NOISE_MULTIPLIER_RANGE)}: "
                f"{_remedy(log_sigma < lowest)}"
            )
        return excess(log_sigma)

    start = math.log(_gaussian_guess(target))
    start = min(max(start, lowest), highest)
    # Epsilon falls at least as fast as 1 / sigma, so most strides cross the root.
    end, start_excess = start, bounded(start)
    end_excess = start_excess
    while end_excess * start_excess > 0:
        start, start_excess = end, end_excess
        end = start + 1.1 * start_excess
        end_excess = bounded(end)
    return math.exp(brentq(excess, start, end, xtol=1e-8 if tilted else 2e-5))


def _remedy(little_noise: bool) -> str:
    if not little_noise:
        return "raise epsilon or delta"
    # Less noise than this guarantees next to nothing, but that is no reason to train without any.
    return "lower epsilon, or take a larger batch or more steps; so little noise protects nobody"


def _gaussian_guess(target: PrivacyTarget) -> float:
    """Return an approximate noise multiplier for a target.

    Central limit theorem of Bu, Dong, Long and Su 2020: T steps are approximately one Gaussian mechanism
    with 1 / sigma = q sqrt(T (exp(1 / sigma_step^2) - 1)).
    """
    epsilon, delta, sampling = target
    noise = gaussian_noise_multiplier(epsilon, delta)
    ratio = 1 / (noise * sampling.rate * math.sqrt(sampling.steps))
    return 1 / math.sqrt(math.log1p(ratio**2))


def _ask_opacus(target: PrivacyTarget, sigma: float) -> tuple[float | None, str]:
    """Return Opacus' epsilon and an empty note, or None and the reason."""
    epsilon, delta, sampling = target
    if math.isinf(epsilon):
        return None, "there is nothing to account for without privacy"
    try:
        return opacus_epsilon(sigma, sampling.rate, sampling.steps, delta, epsilon / 100), ""
    except Exception as error:
        return None, f"Opacus' accountant failed: {error!r}"
