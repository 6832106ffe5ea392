"""Prove a certificate again: every number that follows from others, and the parameters themselves.

Verification runs the functions that wrote the certificate, at the certificate's own noise multipliers,
and compares field by field. What it cannot know is listed by name in
`dpsweep.release.certificate.NOT_KNOWN`; whatever else is changed is found.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from dpsweep.base.files import DamagedFileError, checksum, read_checked_json
from dpsweep.data.prepared import DatasetError, TokenizerIdentity
from dpsweep.data.tokenizer import read_tokenizer, vocabulary_size
from dpsweep.models.architectures import create
from dpsweep.models.backbone import (
    Architecture,
    BackboneError,
    PreparedBackbone,
    backbone_checksum,
)
from dpsweep.models.build import apply_method, build_model
from dpsweep.privacy import Calibration, CalibrationError
from dpsweep.privacy.calibration import certify_again
from dpsweep.privacy.record import mistakes as mistakes_of
from dpsweep.privacy.stored import differing
from dpsweep.privacy.stored import verify as verify_calibration
from dpsweep.privacy.tuning_noise import certify_tuning_again
from dpsweep.release import (
    CARD,
    CERTIFICATE,
    FROZEN,
    TOKENIZER,
    TRAINED,
    ReleaseError,
    binary_files,
)
from dpsweep.release.card import model_card
from dpsweep.release.certificate import (
    NOT_KNOWN,
    Certificate,
    Network,
    Setting,
    best_attacks,
    certify_tuning,
    released_together,
    second_opinion,
)
from dpsweep.release.parameters import split_state, stated
from dpsweep.study.cells import optimizer_steps
from dpsweep.study.shares import held_out_rows

# Another machine may round the last digits differently.
_ROUNDING = 1e-6


def verify(folder: Path, backbone: Path | None = None) -> Certificate:
    """Verify the folder of a release.

    Args:
        folder: the release.
        backbone: the folder of the prepared backbone; frozen parameters are compared with its weights.
            Without it, their names, shapes and types are compared with the architecture.

    Returns:
        The certificate. `not_known` lists its fields that no verification can know.

    Raises:
        ReleaseError: a file is missing, added, edited or damaged, or a number does not follow from the
            others; the message has a line for each.
        BackboneError: there is no prepared backbone in the folder of that name.
    """
    try:
        content = read_checked_json(folder / CERTIFICATE)
        certificate = Certificate.model_validate(content)
    except FileNotFoundError:
        raise ReleaseError(f"{folder}: no release, {CERTIFICATE} is missing") from None
    except DamagedFileError as error:
        raise ReleaseError(str(error)) from None
    except ValidationError as error:
        lines = [f"{folder / CERTIFICATE}: not a certificate:", *mistakes_of(error)]
        raise ReleaseError("\n  ".join(lines)) from None
    prepared = PreparedBackbone.open(backbone) if backbone else None
    mistakes = [
        *_listed(_derived_mistakes(content, certificate)),
        *_file_mistakes(folder, certificate),
    ]
    for later in (
        _contradictions(certificate),
        _accountants(certificate),
        _parameter_mistakes(folder, certificate.network, prepared),
    ):
        # Accountants may take for ever with numbers that contradict each other.
        if not mistakes:
            mistakes += _listed(later)
    if mistakes:
        raise ReleaseError("\n  ".join([f"{folder}: does not verify:", *mistakes]))
    return certificate


def not_known(certificate: Certificate) -> dict[str, str]:
    """The fields of a certificate that verification cannot know, and why."""
    content = certificate.model_dump(mode="json")
    return {name: why for name, why in NOT_KNOWN.items() if _has(content, name.split("."))}


def _has(content: Any, path: list[str]) -> bool:
    if not path:
        return True
    first, *rest = path
    if first == "*":
        return any(_has(each, rest) for each in content)
    return isinstance(content, dict) and first in content and _has(content[first], rest)


def _listed(mistakes: Iterator[str]) -> Iterator[str]:
    """The mistakes, and as the last one the error that ends them, if there is one."""
    try:
        yield from mistakes
    except (CalibrationError, BackboneError, DatasetError, ValueError, ArithmeticError) as error:
        yield str(error)


def _derived_mistakes(content: dict[str, Any], certificate: Certificate) -> Iterator[str]:
    """Compare the file with its parsed form: added keys, NaN and infinities, derived numbers.

    The later checks compare parsed forms, in which none of these can be seen.
    """
    yield from _differs("certificate", content, certificate.model_dump(mode="json"))


def _file_mistakes(folder: Path, certificate: Certificate) -> Iterator[str]:
    named = binary_files(certificate.network.kind)
    for name in sorted({each.name for each in folder.iterdir()} - {CERTIFICATE, CARD, *named}):
        yield f"{name}: is no file of a release"
    yield from _differs("files", sorted(certificate.files), sorted(named))
    for name in named:
        if not (folder / name).is_file():
            yield f"{name}: missing"
        elif checksum(folder / name) != certificate.files.get(name):
            yield f"{name}: is not the file that the certificate is about"
    card = folder / CARD
    if not card.is_file():
        yield f"{CARD}: missing"
    elif card.read_bytes() != model_card(certificate).encode():
        yield f"{CARD}: is not the card of this certificate"


def _differs(name: str, found: Any, expected: Any) -> Iterator[str]:
    """Compare what a certificate has with what it must be, part by part."""
    if isinstance(found, dict) and isinstance(expected, dict):
        for key in sorted(found.keys() | expected.keys()):
            place = f"{name}.{key}".lstrip(".")
            if (key in found) != (key in expected):
                yield f"{place}: {'is no field' if key in found else 'missing'}"
            else:
                yield from _differs(place, found[key], expected[key])
        return
    if isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        for index, (one, other) in enumerate(zip(found, expected, strict=True)):
            yield from _differs(f"{name}.{index}", one, other)
        return
    same = (
        math.isclose(found, expected, rel_tol=_ROUNDING)
        if isinstance(found, float) and isinstance(expected, float)
        else found == expected
    )
    if not same:
        yield f"{name}: found {found}, expected {expected}"


def _contradictions(certificate: Certificate) -> Iterator[str]:
    """Fields that do not fit others, by arithmetic alone."""
    tuning, split, setting = certificate.tuning, certificate.split, certificate.setting
    train_size = split.train_size
    if (tuning is None) != (split.held_out == 0):
        yield (
            f"split.held_out: found {split.held_out} {'without' if tuning is None else 'with'} tuning; "
            "examples are held out for tuning, and for nothing else"
        )
    if certificate.delta * split.examples >= 1:
        yield f"delta: found {certificate.delta}, expected one below 1/{split.examples}"
    target = {"train_size": train_size, "epsilon": certificate.epsilon, "delta": certificate.delta}
    settings, calibrations = [setting], {"noise": certificate.noise}
    if tuning is not None:
        target["epsilon"] = tuning.first_epsilon
        target["delta"] = certificate.delta / tuning.mean_trials
        settings = tuning.candidates
        calibrations |= {f"tuning.noise.{i}": each for i, each in enumerate(tuning.noise)}
        if setting not in settings:
            yield "setting: is not among tuning.candidates"
        if certificate.noise not in tuning.noise:
            yield "noise: is not among tuning.noise"
        schedules = list(dict.fromkeys((each.batch_size, each.steps) for each in settings))
        calibrated = [(each.batch_size, each.steps) for each in tuning.noise]
        yield from _differs("(batch_size, steps) of tuning.noise", calibrated, schedules)
    for where, noise in calibrations.items():
        yield from (f"{where}.{line}" for line in differing(noise, target))
    schedule = {"batch_size": setting.batch_size, "steps": setting.steps}
    yield from (f"noise.{line}" for line in differing(certificate.noise, schedule))
    if certificate.noise.train_size == train_size:  # else there may be too many rows to draw them
        held_out = held_out_rows(split.examples, split.holdout_share) if split.holdout_share else ()
        yield from _differs("split.held_out", split.held_out, len(held_out))
    if not any(_follow(settings, train_size, rounding) for rounding in ("round", "ceil")):
        yield f"setting.steps: do not follow from epochs, batch_size and {train_size} examples"
    for index, model in enumerate(certificate.releases.earlier):
        own = model.noise or model
        if (model.epsilon, model.delta) != (own.epsilon, own.delta):
            yield f"releases.earlier.{index}: found another epsilon or delta than its noise has"
    yield from _network_contradictions(certificate.network)


def _follow(settings: list[Setting], train_size: int, rounding: str) -> bool:
    """Whether all steps follow from the epochs by a rule of rounding."""
    return all(
        each.batch_size <= train_size
        and each.steps == optimizer_steps(train_size, each.batch_size, each.epochs, rounding)
        for each in settings
    )


def _network_contradictions(network: Network) -> Iterator[str]:
    found = backbone_checksum(
        _architecture(network), network.mean, network.std, network.tokenizer, network.weights
    )
    yield from _differs("network.backbone", network.backbone, found)
    yield from _differs("network.kind", network.kind == "text", network.tokenizer is not None)
    channels = network.shape[-1:] if network.kind == "image" else []
    if network.kind == "image" and (len(network.shape) != 3 or channels != [len(network.mean)]):
        yield (
            f"network.shape: found {network.shape}, expected (height, width, {len(network.mean)})"
        )
    yield from _differs("network.resize", network.resize is None, network.kind == "text")
    if network.kind == "text" and len(network.shape) != 1:
        yield f"network.shape: found {network.shape}, expected a number of tokens"


def _accountants(certificate: Certificate) -> Iterator[str]:
    """Run both accountants again for every epsilon, and compare with what they write."""
    found, expected = (
        each.model_dump(mode="json") for each in (certificate, _proven_again(certificate))
    )
    yield from _differs("", found, expected)


def _proven_again(certificate: Certificate) -> Certificate:
    noise, tuning, stated_tuning = certificate.noise, None, None
    if certificate.tuning is None:
        noise = _proven(noise, "noise")
        certified = noise.certified_epsilon
    else:
        given = certificate.tuning.tuning_noise(certificate.epsilon, certificate.delta)
        for each in given.noise:
            verify_calibration(each)
        tuning = certify_tuning_again(given)
        certified = tuning.total_epsilon
        stated_tuning = certify_tuning(
            tuning, certificate.tuning.candidates, certificate.tuning.score
        )
    earlier = [
        each.model_copy(update={"noise": _proven(each.noise, f"releases.earlier.{index}.noise")})
        if each.noise
        else each
        for index, each in enumerate(certificate.releases.earlier)
    ]
    alone = None if tuning else noise
    return certificate.model_copy(
        update={
            "certified_epsilon": certified,
            "pld_epsilon": second_opinion(noise, tuning),
            "attacks": best_attacks(noise, tuning),
            "noise": noise,
            "tuning": stated_tuning,
            "releases": released_together(earlier, alone, certificate.epsilon, certificate.delta),
        }
    )


def _proven(noise: Calibration, where: str) -> Calibration:
    """Run the accountants again, the quick one first: it refuses noise that others take minutes for."""
    try:
        verify_calibration(noise)
        return certify_again(noise)
    except CalibrationError as error:
        raise CalibrationError(f"{where}: {error}") from None


def _architecture(network: Network) -> Architecture:
    return Architecture(
        library=network.library, name=network.architecture, arguments=network.arguments
    )


def _parameter_mistakes(
    folder: Path, network: Network, prepared: PreparedBackbone | None
) -> Iterator[str]:
    """Compare the parameters with the architecture, and frozen ones with the backbone's weights."""
    if network.tokenizer is not None:
        found = TokenizerIdentity(
            vocabulary=vocabulary_size(read_tokenizer(folder / TOKENIZER)),
            checksum=checksum(folder / TOKENIZER),
        )
        yield from _differs("network.tokenizer", network.tokenizer.model_dump(), found.model_dump())
    with torch.device("meta"):
        model = create(_architecture(network), len(network.classes))
        apply_method(model, network.method)
    for name, expected in stated(model).items():
        yield from _differs(f"network.{name}", getattr(network, name), expected)
    trained, frozen = split_state(model)
    yield from _tensor_mistakes(folder / TRAINED, trained)
    yield from _tensor_mistakes(folder / FROZEN, frozen)
    if prepared is not None:
        yield from _differs("network.backbone", network.backbone, prepared.metadata.checksum)
        initial = build_model(prepared.folder, network.method, len(network.classes), seed=1)
        yield from _value_mistakes(folder / FROZEN, initial)


def _tensor_mistakes(file: Path, expected: dict[str, Tensor]) -> Iterator[str]:
    """Compare names, shapes and types of a file's tensors; numbers must be finite."""
    try:
        with safe_open(file, framework="pt") as stored:
            names = set(stored.keys())
            for name in sorted(expected.keys() - names):
                yield f"{file.name}: {name} is missing"
            for name in sorted(names - expected.keys()):
                yield f"{file.name}: {name} is not among what belongs there"
            for name in sorted(names & expected.keys()):
                found, wanted = stored.get_tensor(name), expected[name]
                if (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
                    yield (
                        f"{file.name}: {name}: found {found.dtype} {tuple(found.shape)}, expected "
                        f"{wanted.dtype} {tuple(wanted.shape)}"
                    )
                elif not found.isfinite().all():
                    yield f"{file.name}: {name}: found numbers that are not finite"
    except SafetensorError as error:
        yield f"{file.name}: is no file of parameters: {error}"


def _value_mistakes(file: Path, initial: nn.Module) -> Iterator[str]:
    _, frozen = split_state(initial)
    with safe_open(file, framework="pt") as stored:
        for name in sorted(frozen.keys() & set(stored.keys())):
            if not torch.equal(stored.get_tensor(name), frozen[name]):
                yield f"{file.name}: {name}: found other numbers than the backbone has"
