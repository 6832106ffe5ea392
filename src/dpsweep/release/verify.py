"""Compute every number of a certificate again from its own fields, with another accountant."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from safetensors import SafetensorError, safe_open

from dpsweep.files import DamagedFileError, checksum, read_checked_json
from dpsweep.privacy import Calibration, CalibrationError
from dpsweep.privacy.calibration import CROSS_CHECK_TOLERANCE
from dpsweep.privacy.gaussian import gaussian_delta
from dpsweep.privacy.pld import pld_epsilon, pld_interval
from dpsweep.privacy.stored import verify as verify_calibration
from dpsweep.privacy.tuning import gamma_of_mean
from dpsweep.privacy.tuning_noise import TuningNoise, certify_second, training_profile
from dpsweep.release import CARD, CERTIFICATE, FROZEN, TRAINED, ReleaseError
from dpsweep.release.card import model_card
from dpsweep.release.certificate import Certificate, Setting, Tuning, second_opinion
from dpsweep.study.cells import optimizer_steps
from dpsweep.study.shares import held_out_rows

# Another machine may round the last digits differently.
_ROUNDING = 1e-6


def verify(folder: Path) -> Certificate:
    """Verify the folder of a release.

    Returns:
        The certificate.

    Raises:
        ReleaseError: a file is missing, was edited or damaged, or a number does not follow from the
            others; the message has a line for each.
    """
    try:
        certificate = Certificate.model_validate(read_checked_json(folder / CERTIFICATE))
    except FileNotFoundError:
        raise ReleaseError(f"{folder}: no release, {CERTIFICATE} is missing") from None
    except DamagedFileError as error:
        raise ReleaseError(str(error)) from None
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
        raise ReleaseError(
            "\n  ".join([f"{folder / CERTIFICATE}: not a certificate:", *lines])
        ) from None
    mistakes = [*_file_mistakes(folder, certificate)]
    try:
        mistakes += _number_mistakes(certificate)
    except (CalibrationError, ValueError, OverflowError) as error:
        mistakes.append(str(error))
    if mistakes:
        raise ReleaseError("\n  ".join([f"{folder}: does not verify:", *mistakes]))
    return certificate


def _file_mistakes(folder: Path, certificate: Certificate) -> Iterator[str]:
    if certificate.files.keys() != {TRAINED, FROZEN}:
        yield f"files: found {sorted(certificate.files)}, expected {TRAINED} and {FROZEN}"
    for name, expected in certificate.files.items():
        file = folder / Path(name).name
        if not file.is_file():
            yield f"{name}: missing"
        elif checksum(file) != expected:
            yield f"{name}: is not the file that the certificate is about"
        elif name == TRAINED:
            found, stated = _numbers_in(file), certificate.network.trained_parameters
            yield from _differs("network.trained_parameters", stated, found)
    card = folder / CARD
    if not card.is_file():
        yield f"{CARD}: missing"
    elif card.read_text(encoding="utf-8") != model_card(certificate):
        yield f"{CARD}: is not the card of this certificate"


def _numbers_in(file: Path) -> int | None:
    try:
        with safe_open(file, framework="numpy") as stored:
            shapes = [stored.get_slice(name).get_shape() for name in stored.keys()]  # noqa: SIM118
            return sum(map(math.prod, shapes))
    except SafetensorError:
        return None


def _differs(name: str, found: Any, expected: Any) -> Iterator[str]:
    same = (
        math.isclose(found, expected, rel_tol=_ROUNDING)
        if isinstance(found, float) and isinstance(expected, float)
        else found == expected
    )
    if not same:
        yield f"{name}: found {found}, expected {expected}"


def _number_mistakes(certificate: Certificate) -> Iterator[str]:
    """What does not follow from the other fields: a line each."""
    noise, setting, split = (
        Calibration.from_dict(certificate.noise),
        certificate.setting,
        certificate.split,
    )
    held_out = len(held_out_rows(split.examples, split.holdout_share))
    yield from _differs("split.held_out", split.held_out, held_out if split.holdout_share else 0)
    if certificate.delta * split.examples >= 1:
        yield f"delta: found {certificate.delta}, expected one below 1/{split.examples}"
    yield from _setting_mistakes("setting", certificate, setting)
    yield from _differs("noise.batch_size", noise.batch_size, setting.batch_size)
    yield from _differs("noise.steps", noise.steps, setting.steps)
    if certificate.tuning is None:
        yield from _calibration_mistakes(
            "noise", certificate, certificate.noise, certificate.epsilon, certificate.delta
        )
        tuning, proven = None, noise.certified_epsilon
    else:
        tuning = certificate.tuning.tuning_noise(certificate.epsilon, certificate.delta)
        yield from _tuning_mistakes(certificate, certificate.tuning, tuning)
        proven = tuning.total_epsilon
    yield from _differs("certified_epsilon", certificate.certified_epsilon, proven)
    yield from _differs("pld_epsilon", certificate.pld_epsilon, second_opinion(noise, tuning))
    if not proven <= certificate.epsilon * (1 + 1e-9):
        yield f"epsilon: found {certificate.epsilon}, expected at least {proven}"
    if not abs(certificate.pld_epsilon - proven) <= CROSS_CHECK_TOLERANCE * proven:
        yield f"pld_epsilon: found {certificate.pld_epsilon}, expected about {proven}"


def _setting_mistakes(where: str, certificate: Certificate, setting: Setting) -> Iterator[str]:
    size = certificate.split.examples - certificate.split.held_out
    steps = optimizer_steps(size, setting.batch_size, setting.epochs, certificate.step_rounding)
    yield from _differs(f"{where}.steps", setting.steps, steps)


def _calibration_mistakes(
    where: str, certificate: Certificate, stored: dict[str, Any], epsilon: float, delta: float
) -> Iterator[str]:
    noise = Calibration.from_dict(stored)
    split = certificate.split
    yield from _differs(f"{where}.train_size", noise.train_size, split.examples - split.held_out)
    yield from _differs(f"{where}.epsilon", noise.epsilon, epsilon)
    yield from _differs(f"{where}.delta", noise.delta, delta)
    derived = noise.to_dict()
    for name in derived.keys() | stored.keys():
        yield from _differs(f"{where}.{name}", stored.get(name), derived.get(name))
    verify_calibration(noise)
    found = _epsilon_by_pld(noise)
    yield from _differs(f"{where}.pld_epsilon", noise.pld_epsilon, found)


def _epsilon_by_pld(noise: Calibration) -> float:
    interval = pld_interval(noise.epsilon, noise.steps)
    return pld_epsilon(
        noise.noise_multiplier, noise.sampling_rate, noise.steps, noise.delta, interval
    )


def _tuning_mistakes(
    certificate: Certificate, stored: Tuning, tuning: TuningNoise
) -> Iterator[str]:
    gamma = gamma_of_mean(stored.mean_trials, stored.shape)
    first, second = stored.first_epsilon, stored.second_epsilon
    first_delta = certificate.delta / stored.mean_trials
    yield from _differs("tuning.gamma", stored.gamma, gamma)
    expected = gamma * math.expm1(second) / (1 - gamma)
    yield from _differs("tuning.second_delta", stored.second_delta, expected)
    if len(stored.candidates) < 2:
        yield "tuning.candidates: found a grid of one, expected at least two settings"
    if certificate.setting not in stored.candidates:
        yield "setting: is not among tuning.candidates"
    if certificate.noise not in stored.noise:
        yield "noise: is not among tuning.noise"
    calibrated = {(each.batch_size, each.steps) for each in tuning.calibrations}
    for index, setting in enumerate(stored.candidates):
        yield from _setting_mistakes(f"tuning.candidates[{index}]", certificate, setting)
        if (setting.batch_size, setting.steps) not in calibrated:
            yield f"tuning.candidates[{index}]: has no noise of its batch size and steps"
    for index, noise in enumerate(tuning.calibrations):
        where = f"tuning.noise[{index}]"
        yield from _calibration_mistakes(
            where, certificate, stored.noise[index], first, first_delta
        )
        certify_second(noise, second, stored.second_delta)
        if training_profile(noise)(second) > stored.second_delta:
            yield f"{where}: PLD finds a larger delta than tuning.second_delta at tuning.second_epsilon"
    for epsilon, delta in ((first, first_delta), (second, stored.second_delta)):
        if gaussian_delta(epsilon, stored.score_noise) > delta * (1 + _ROUNDING):
            yield (
                f"tuning.score_noise: found {stored.score_noise}, which is not ({epsilon:.6g}, "
                f"{delta:.6g})-private; expected more"
            )
