"""Calibration: find a certified noise multiplier that is hardly larger than necessary.

The full batch has a closed form, which privacy loss distributions (PLD) check. Otherwise PLD search and
certify, fast on a coarse mesh and then on a fine one, and prv-accountant checks.
"""

import math
import warnings
from dataclasses import replace
from typing import Any, NamedTuple

from dpsweep.privacy import accountants
from dpsweep.privacy.noise import Calibration, CalibrationError, Sampling, checked_target

# The search ends with a certified epsilon in [1 - SLACK, 1] times the target. A looser bound wastes noise.
SLACK = 1e-3
# This share of the target is enough for a calibration that is checked: the accountants of earlier versions
# proved larger bounds for the same noise.
_ENOUGH = 0.997
# If two accountants differ by more, one of them is wrong.
CROSS_CHECK_TOLERANCE = 0.01
# Noise multipliers outside this range are useless, and accountants are imprecise there.
NOISE_MULTIPLIER_RANGE = (0.1, 1e6)
# The same for the noise of all steps on the full batch, which has a closed form.
_FULL_BATCH_RANGE = (1e-4, 1e9)
# Accountants of earlier versions, in files and certificates. Their bounds are a little larger.
FORMER_ACCOUNTANTS = {"prv", "tilted pld"}
# The search begins on a mesh that is coarser by this factor, until epsilon is so near to the target.
_COARSER = 8.0
_NEAR = 0.02
# Machines may differ in the last digits.
_ROUNDING = 1e-9


class PrivacyTarget(NamedTuple):
    """The target (epsilon, delta) of training."""

    epsilon: float
    delta: float
    sampling: Sampling


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
    ('1.126', '1.999', 'pld')

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
    epsilon, delta = checked_target(epsilon, delta)
    if delta * sampling.units >= 1 and not math.isinf(epsilon):
        warnings.warn(
            f"delta = {delta} is not below 1 / train_size = {1 / sampling.units:.2g}: such a guarantee "
            "lets an algorithm publish an example outright. Use a smaller delta",
            stacklevel=3,
        )
    target = PrivacyTarget(epsilon, delta, sampling)
    certified = _certified_noise(target)
    if not check_with_opacus:
        return certified
    opacus, note = _ask_opacus(target, certified.noise_multiplier)
    return replace(certified, opacus_epsilon=opacus, opacus_note=note)


def certify_again(noise: Calibration) -> Calibration:
    """Run both accountants at a calibration's own noise multiplier, sampling rate, steps and delta.

    Args:
        noise: of training with privacy.

    Returns:
        The noise with new results, the same as those of `calibrate`. A larger bound that an accountant of an
        earlier version proved still holds, so it stays.

    Raises:
        CalibrationError: a number is out of range, the noise multiplier is certified for a larger epsilon
            or a much smaller one, or the accountants disagree.
    """
    checked_target(noise.epsilon, noise.delta)
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
    if noise.accountant in FORMER_ACCOUNTANTS:
        holds = proven < noise.certified_epsilon <= noise.epsilon
        if holds and _agree(noise.pld_epsilon, proven):
            return replace(noise, opacus_epsilon=None, opacus_note="not asked for")
    return certified


def verify(noise: Calibration) -> None:
    """Certify a calibration again.

    Raises:
        CalibrationError: as `certify_again`; the certified epsilon is another one; there is noise at
            infinite epsilon; or it is no calibration.
    """
    if not isinstance(noise, Calibration):
        raise CalibrationError(f"calibration: found {noise!r}; allowed: one of dpsweep.calibrate")
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
    epsilon, delta = checked_target(epsilon, delta)
    return _certified_noise(PrivacyTarget(epsilon, delta, sampling)).noise_multiplier


def _certified_noise(target: PrivacyTarget) -> Calibration:
    if math.isinf(target.epsilon):
        return _calibration(
            target,
            noise_multiplier=0.0,
            certified_epsilon=math.inf,
            accountant="none",
            pld_epsilon=math.inf,
        )
    if target.sampling.full_batch:
        sigma = accountants.gaussian_noise_multiplier(
            target.epsilon, target.delta, target.sampling.steps
        )
        certified = proven_epsilon(target, sigma)
    else:
        sigma, certified = _search(target)
    return _cross_checked(target, sigma, certified)


def proven_epsilon(target: PrivacyTarget, sigma: float, coarser: float = 1.0) -> float:
    """Return the epsilon that is proven for a noise multiplier.

    Args:
        target: its epsilon sets the mesh, and should be about the result.
        sigma: the noise multiplier.
        coarser: factor of the mesh width; the bound is faster and looser.

    Raises:
        CalibrationError: delta is too small for the number of steps, or epsilon is too large.
    """
    epsilon, delta, sampling = target
    if sampling.full_batch:
        return accountants.gaussian_epsilon(delta, sigma, sampling.steps)
    try:
        return accountants.certified_bound(sigma, sampling, delta, epsilon, coarser)
    except OverflowError:
        raise CalibrationError(
            f"epsilon = {epsilon:g} is more than accountants compute; {_remedy(little_noise=True)}"
        ) from None


def _agree(one: float, other: float) -> bool:
    return abs(one - other) <= CROSS_CHECK_TOLERANCE * other


def _calibration(target: PrivacyTarget, **found: Any) -> Calibration:
    epsilon, delta, sampling = target
    setting = epsilon, delta, sampling.units, sampling.batch_size, sampling.steps
    return Calibration(*setting, opacus_epsilon=None, opacus_note="not asked for", **found)


def _cross_checked(target: PrivacyTarget, sigma: float, certified: float) -> Calibration:
    """Return a certified epsilon with its accountant and the epsilons of the others.

    Raises:
        CalibrationError: the certified epsilon is not just below the target, or another accountant
            disagrees.
    """
    epsilon, delta, sampling = target
    rate, steps = sampling.rate, sampling.steps
    if not _ENOUGH * epsilon <= certified <= epsilon:
        raise CalibrationError(
            f"noise multiplier {sigma:.6g} has the certified epsilon {certified:.6g}, outside "
            f"[{_ENOUGH}, 1] times the target {epsilon}"
        )
    found: dict[str, Any] = {"noise_multiplier": sigma, "certified_epsilon": certified}
    if sampling.full_batch:
        second = accountants.pld_epsilon(
            sigma, rate, steps, delta, accountants.pld_interval(epsilon, steps)
        )
        found |= {"accountant": "analytic gaussian", "pld_epsilon": second}
    else:
        prv = accountants.prv_epsilon(sigma, sampling, delta, epsilon)
        second = certified if prv is None else prv
        found |= {"accountant": "pld", "pld_epsilon": certified, "prv_epsilon": prv}
    if not _agree(second, certified):
        raise CalibrationError(
            f"accountants disagree at noise multiplier {sigma:.6g}, sampling rate {rate:.6g}, {steps} steps, "
            f"delta {delta}: {found['accountant']} certifies epsilon {certified:.6g}, another finds "
            f"{second:.6g}. None of them is used"
        )
    return _calibration(target, **found)


def sampled_at_all(sampling: Sampling) -> float:
    """Return the probability that a unit takes part in any step of sampled batches."""
    return -math.expm1(sampling.steps * math.log1p(-sampling.rate))


def _search(target: PrivacyTarget) -> tuple[float, float]:
    """Return a noise multiplier that is certified within SLACK, and the certified epsilon.

    Secants of log epsilon over log sigma, which falls, within the bracket that they found so far.
    """
    epsilon, delta, sampling = target
    # Without noise, delta is the probability that the example is sampled in any step.
    if sampled_at_all(sampling) <= delta:
        raise CalibrationError(
            f"delta = {delta} is not below the probability that an example is sampled at all "
            f"(sampling rate {sampling.rate:.3g}, {sampling.steps} steps): no noise would be needed and "
            "nothing would be private. Use a smaller delta"
        )
    lowest, highest = map(math.log, NOISE_MULTIPLIER_RANGE)
    low, high = -math.inf, math.inf
    place = min(max(math.log(_gaussian_guess(target)), lowest), highest)
    last, slope, coarser = None, -1.5, _COARSER
    for _ in range(60):
        certified = proven_epsilon(target, math.exp(place), coarser)
        if coarser == 1 and (1 - SLACK) * epsilon <= certified <= epsilon:
            break
        excess = math.log(max(certified / epsilon, 0.1) / (1 - SLACK / 2))
        excess = max(-1.0, min(1.0, excess))
        if place == (lowest if excess < 0 else highest):
            raise CalibrationError(
                f"epsilon = {epsilon:.4g}, delta = {delta}, sampling rate {sampling.rate:.3g}, "
                f"{sampling.steps} steps needs a noise multiplier outside "
                f"{list(NOISE_MULTIPLIER_RANGE)}: {_remedy(excess < 0)}"
            )
        if last is not None and abs(place - last[0]) > 1e-4:
            slope = min((excess - last[1]) / (place - last[0]), -0.5)
        low, high = (place, high) if excess > 0 else (low, place)
        last = place, excess
        if coarser > 1 and abs(excess) < _NEAR:
            # The bound falls on the finer mesh, so the bracket no longer holds.
            last, coarser, low, high = None, 1.0, -math.inf, math.inf
        place = min(max(place - excess / slope, lowest), highest)
        if not low < place < high:
            place = (low + high) / 2
    return math.exp(place), certified


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
    noise = accountants.gaussian_noise_multiplier(epsilon, delta)
    ratio = 1 / (noise * sampling.rate * math.sqrt(sampling.steps))
    return 1 / math.sqrt(math.log1p(ratio**2))


def _ask_opacus(target: PrivacyTarget, sigma: float) -> tuple[float | None, str]:
    """Return Opacus' epsilon and an empty note, or None and the reason."""
    epsilon, delta, sampling = target
    if math.isinf(epsilon):
        return None, "there is nothing to account for without privacy"
    try:
        return accountants.opacus_epsilon(
            sigma, sampling.rate, sampling.steps, delta, epsilon / 100
        ), ""
    except Exception as error:
        return None, f"Opacus' accountant failed: {error!r}"
