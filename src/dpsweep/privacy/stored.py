"""Calibration files. Jobs verify every field that they can compare or compute.

Training with too little noise works without an error, and the results do not show it. So a reader
passes the setting that the file must be for, and epsilon is computed again from the numbers in the
file. This takes at most a quarter of a second for the paper's study.
"""

import math
from pathlib import Path
from typing import Any

from dpsweep.base.files import checked, read_json, write_checked_json
from dpsweep.privacy.accountants import pld_epsilon, pld_interval
from dpsweep.privacy.calibration import (
    CROSS_CHECK_TOLERANCE,
    PrivacyTarget,
    accountant,
    proven_epsilon,
)
from dpsweep.privacy.gaussian import gaussian_delta
from dpsweep.privacy.record import Calibration
from dpsweep.privacy.sampling import CalibrationError, Sampling

# Machines may differ in the last digits.
_ROUNDING = 1e-9


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write a calibration as JSON with a fingerprint, atomically."""
    write_checked_json(path, calibration.to_dict())


def read_calibration(path: Path, epsilon: float, delta: float, sampling: Sampling) -> Calibration:
    """Read a file of `write_calibration` and verify it.

    Args:
        path: the file.
        epsilon: the target that the noise must be for; infinity is training without privacy.
        delta: of the (epsilon, delta) guarantee.
        sampling: that the noise must be for.

    Raises:
        CalibrationError: the file is missing, is for another setting, or its noise multiplier does
            not give the epsilon that it claims. The message contains the found and the expected value.
        DamagedFileError: another part of the file was edited or damaged.
    """
    expected = {
        "epsilon": epsilon,
        "delta": delta,
        "train_size": sampling.units,
        "batch_size": sampling.batch_size,
        "steps": sampling.steps,
    }
    try:
        content = read_json(path)
        noise = Calibration.from_dict(content)
        compare(noise, expected)
        verify(noise)
    except FileNotFoundError:
        raise CalibrationError(f"{path}: no such calibration", (path,)) from None
    except (ValueError, TypeError) as error:
        wrong = error if isinstance(error, CalibrationError) else f"damaged: {error}"
        raise CalibrationError(f"{path}: {wrong}", (path,)) from None
    checked(path, content)
    return noise


def compare(noise: Calibration, expected: dict[str, Any]) -> None:
    """Check that a calibration has these values.

    Raises:
        CalibrationError: the message names every field that differs.
    """
    if wrong := differing(noise, expected):
        raise CalibrationError("; ".join(wrong))


def differing(noise: Calibration, expected: dict[str, Any]) -> list[str]:
    """Return a line with the found and the expected value for every field that differs."""
    return [
        f"{name}: found {getattr(noise, name)}, expected {value}"
        for name, value in expected.items()
        if getattr(noise, name) != value
    ]


def verify(noise: Calibration) -> None:
    """Compute epsilon again from the noise multiplier, sampling rate, steps and delta.

    Certificates of PRV are checked by privacy loss distributions, which PRV does not use. The closed form
    of the full batch and the tilted accountant are fast enough to run again.

    Raises:
        CalibrationError: the noise multiplier gives more than the target epsilon, or another epsilon
            than the certified one; or there is noise at infinite epsilon, or none at a finite one.
    """
    sigma, target, certified = noise.noise_multiplier, noise.epsilon, noise.certified_epsilon
    if math.isinf(target):
        compare(noise, {"noise_multiplier": 0, "certified_epsilon": math.inf})
        return
    if not (sigma > 0 and math.isfinite(sigma)):
        raise CalibrationError(
            f"noise_multiplier: found {sigma}, expected a positive number, because epsilon is "
            f"{target:g}"
        )
    # With 1 % of tolerance, because one step of the full batch has exactly this delta up to rounding.
    if _one_step_delta(target, sigma, noise.sampling_rate) > 1.01 * noise.delta:
        raise CalibrationError(
            f"noise_multiplier: found {sigma}, which gives more than epsilon {target:g} in a single "
            "step; expected one that gives at most as much in all"
        )
    aim = PrivacyTarget(target, noise.delta, noise.sampling)
    if accountant(aim) == "prv":
        interval = pld_interval(target, noise.steps)
        found = pld_epsilon(sigma, noise.sampling_rate, noise.steps, noise.delta, interval)
    else:
        found = proven_epsilon(aim, sigma)
    if not found <= target * (1 + _ROUNDING):
        raise CalibrationError(
            f"noise_multiplier: found {sigma}, which gives epsilon {found:.6g}; expected one that "
            f"gives at most {target:g}"
        )
    if not abs(certified - found) <= CROSS_CHECK_TOLERANCE * found or certified > target:
        raise CalibrationError(
            f"certified_epsilon: found {certified}, expected about {found:.6g} (computed again "
            f"from noise_multiplier) and at most {target:g}"
        )


def _one_step_delta(epsilon: float, noise_multiplier: float, sampling_rate: float) -> float:
    """Return the delta of one step, for removing an example: a lower bound on the delta of all steps.

    It rejects far too little noise quickly. Privacy loss distributions would take minutes and
    gigabytes for such noise.
    """
    # Sampling turns (epsilon', delta') into (log(1 + q (exp(epsilon') - 1)), q delta').
    amplified = math.log1p(-(1 - sampling_rate) * math.exp(-epsilon)) - math.log(sampling_rate)
    return sampling_rate * gaussian_delta(epsilon + amplified, noise_multiplier)
