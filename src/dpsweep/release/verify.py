"""Verification of a release: every number of the certificate that follows from others, and the parameters.

Verification runs the functions that wrote the certificate, at the certificate's own noise multipliers,
and compares field by field. It finds a change of any field but those of
`dpsweep.release.certificate.UNVERIFIABLE_CLAIMS`.

Files have limited sizes, and networks a limited number of parameters. Nothing limits the time of accountants:
who expects an attack verifies in a container.
"""

import hashlib
import itertools
import math
import reprlib
import warnings
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from pydantic import ValidationError
from safetensors import safe_open
from torch import nn

from dpsweep.base.errors import DpsweepError
from dpsweep.base.files import (
    DamagedFileError,
    checksum,
    fingerprint,
    mistakes_of,
    read_checked_json,
)
from dpsweep.data.prepared import DatasetError, TokenizerIdentity, read_metadata
from dpsweep.data.texts import vocabulary_size
from dpsweep.models.backbone import PreparedBackbone, backbone_checksum
from dpsweep.models.build import build_model
from dpsweep.privacy.calibration import FORMER_ACCOUNTANTS, certify_again
from dpsweep.privacy.noise import Calibration, CalibrationError, differing
from dpsweep.privacy.tuning import certify_tuning_again
from dpsweep.release import CARD, CERTIFICATE, FROZEN, TOKENIZER, TRAINED, ReleaseError, files
from dpsweep.release.certificate import (
    UNVERIFIABLE_CLAIMS,
    Certificate,
    DataSplit,
    Network,
    ReleasedFeatures,
    ReleasePlan,
    Setting,
    best_attacks,
    certify_tuning,
    epsilon_by_pld,
)
from dpsweep.release.ledger import Ledger, ledger_mistakes, released_together
from dpsweep.study import Paths, Study
from dpsweep.study.cells import optimizer_steps
from dpsweep.study.datasets import KINDS, Origins, held_out_rows, origins
from dpsweep.study.networks import Architecture, BackboneError, kind_read_by

LedgerWord = Literal["beside", "none"]
"""The ledger to compare a release with: the one beside its results if there is one, or none."""

_WHOLE = ("optimizer", "network.method")
"""Mappings whose keys all come from a study: an additional key in the certificate is a difference."""

# Machines may differ in the last digits.
_ROUNDING = 1e-6
# Above this number of rows the held-out part is not drawn again; so many rows take 1.5 seconds.
_MOST_ROWS = 3 * 10**5


def verify(
    folder: str | Path,
    backbone: str | Path | None = None,
    ledger: str | Path | LedgerWord = "beside",
) -> Certificate:
    """Verify the folder of a release.

    Args:
        folder: the release.
        backbone: the folder of the prepared backbone; frozen parameters are compared with its weights.
            Without it, their names, shapes and types are compared with the architecture.
        ledger: the ledger of the study that made the release. Its line is compared with the certificate,
            and earlier lines with the earlier releases in the certificate. The default is the ledger beside
            the results that contain the folder, if there is one.

    Returns:
        The certificate. `unverifiable_claims` lists its fields that verification cannot check.

    Raises:
        ReleaseError: a file is missing, added, edited or damaged, or a number does not follow from the
            others; the message has a line for each mistake.
        BackboneError: the backbone folder contains no prepared backbone.
    """
    folder = Path(folder)
    wrong = f"{folder}: does not verify:"
    files.refuse(wrong, files.file_mistakes(folder))
    content, certificate = _read(folder)
    prepared = PreparedBackbone.open(backbone) if backbone else None
    # Each check is fast only if the checks before it passed: contradictory numbers could cost the accountants
    # hours, and files that do not fit the network may have any size.
    # The later checks compare parsed forms, which do not show added keys and wrong derived numbers.
    parsed = certificate.model_dump(mode="json")
    checks = [
        itertools.chain(_differs("certificate", content, parsed), _contradictions(certificate)),
        _card_mistakes(folder, certificate),
        _parameter_mistakes(folder, certificate, prepared),
        _accountants(certificate),
    ]
    if beside := ledger_of(folder, ledger):
        checks.append(ledger_mistakes(certificate, fingerprint(content), Ledger(beside)))
    for mistakes in checks:
        files.refuse(wrong, _until_error(mistakes))
    return certificate


def ledger_of(folder: Path, ledger: str | Path | LedgerWord = "beside") -> Path | None:
    """Return the ledger to compare a release with; None if there is none.

    Raises:
        ReleaseError: the named ledger is missing.
    """
    if ledger not in get_args(LedgerWord):
        named = Path(ledger)
        if not named.exists():
            raise ReleaseError(f"{named}: no such ledger")
        return named
    beside = Paths(folder.resolve().parent).ledger
    return beside if ledger == "beside" and beside.exists() else None


def _read(folder: Path) -> tuple[dict[str, Any], Certificate]:
    """Read the certificate; return it as a mapping and in parsed form.

    Raises:
        ReleaseError: it is missing, damaged or not a certificate.
    """
    file = folder / CERTIFICATE
    try:
        content = read_checked_json(file)
        return content, Certificate.model_validate(content)
    except FileNotFoundError:
        raise ReleaseError(f"{folder}: no release, {CERTIFICATE} is missing") from None
    except DamagedFileError as error:
        raise ReleaseError(str(error)) from None
    except ValidationError as error:
        files.refuse(f"{file}: not a certificate:", mistakes_of(error))
        raise


def unverifiable_claims(certificate: Certificate) -> dict[str, str]:
    """Return the fields of a certificate that verification cannot check, and why."""
    content = certificate.model_dump(mode="json")
    return {
        name: why for name, why in UNVERIFIABLE_CLAIMS.items() if _has(content, name.split("."))
    }


def _has(content: Any, path: list[str]) -> bool:
    if not path:
        return content is not None
    first, *rest = path
    if first == "*":
        return any(_has(each, rest) for each in content)
    return isinstance(content, dict) and first in content and _has(content[first], rest)


def _until_error(mistakes: Iterator[str]) -> Iterator[str]:
    """Yield the mistakes, and finally the error that interrupted the search, if there is one."""
    try:
        with warnings.catch_warnings(action="ignore"):  # warnings about overflow
            yield from mistakes
    except DpsweepError as error:
        yield str(error)
    except Exception as error:  # libraries raise many types for unexpected numbers
        yield f"found numbers that no release has ({type(error).__name__}: {error})"


def differences(
    name: str, found: Any, expected: Any, rounding: float = 0.0, partial: bool = False
) -> Iterator[str]:
    """Yield a line for each difference between a part of a certificate, as JSON, and what is expected.

    Args:
        name: of the part.
        found: in the certificate.
        expected: the right value.
        rounding: largest relative difference of numbers that are not whole.
        partial: whether the part may have keys that are not expected.
    """
    if isinstance(found, dict) and isinstance(expected, dict):
        for key in sorted(expected.keys() if partial else found.keys() | expected.keys()):
            place = f"{name}.{key}".lstrip(".")
            inner = partial and place not in _WHOLE
            yield from differences(place, found.get(key), expected.get(key), rounding, inner)
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        for index, (one, other) in enumerate(zip(found, expected, strict=True)):
            yield from differences(f"{name}.{index}", one, other, rounding, partial)
    # In Python True == 1 and 3.0 == 3, but not in JSON.
    elif type(found) is not type(expected) or not (
        math.isclose(found, expected, rel_tol=rounding)
        if isinstance(found, float)
        else found == expected
    ):
        yield f"{name}: found {_short(found)}, expected {_short(expected)}"


def _short(value: Any) -> str:
    return reprlib.repr(value) if isinstance(value, str | list | dict) else str(value)


_differs = partial(differences, rounding=_ROUNDING)


def _card_mistakes(folder: Path, certificate: Certificate) -> Iterator[str]:
    if files.file_content(folder, CARD) != files.model_card(certificate).encode():
        yield f"{CARD}: is not the card of this certificate"


def _contradictions(certificate: Certificate) -> Iterator[str]:
    """Yield fields that contradict others, by arithmetic alone."""
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
    automatic = any(each.clipping_bound == "automatic" for each in settings)
    if automatic != (certificate.automatic_clipping_gamma is not None):
        yield (
            f"automatic_clipping_gamma: found {certificate.automatic_clipping_gamma}, expected "
            f"{'a number' if automatic else 'None'}"
        )
    yield from _split_mistakes(split)
    if not _follow(settings, train_size, certificate.step_rounding):
        yield f"setting.steps: do not follow from epochs, batch_size and {train_size} examples"
    for index, model in enumerate(certificate.releases.earlier):
        own = model.noise or model
        if (model.epsilon, model.delta) != (own.epsilon, own.delta):
            yield f"releases.earlier.{index}: found another epsilon or delta than its noise has"
    yield from _network_contradictions(certificate.network)
    for name, expected in split.guarantee().items():
        yield from _differs(name, getattr(certificate, name), expected)
    test = certificate.test_set
    of_units = split.rows_per_unit, test.units, test.unit_accuracy
    if any((split.unit is None) != (each is None) for each in of_units):
        yield (
            "split.unit: found it without rows_per_unit, test_set.units or test_set.unit_accuracy, or one "
            "of these without it"
        )


def _split_mistakes(split: DataSplit) -> Iterator[str]:
    """Draw the held-out part again, or for very many rows compare its size with the expected size."""
    share, found = split.holdout_share, split.held_out
    if split.examples > _MOST_ROWS:
        expected = share * split.examples
        if abs(found - expected) > 7 * math.sqrt(expected):
            yield f"split.held_out: found {found}, expected about {expected:.0f}"
        return
    held_out = held_out_rows(split.examples, share) if share else ()
    yield from _differs("split.held_out", found, len(held_out))


def _follow(settings: list[Setting], train_size: int, rounding: str) -> bool:
    """Return whether all steps follow from the epochs by a rule of rounding."""
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
    reads = "text" if network.tokenizer else kind_read_by(network.library, network.architecture)
    yield from _differs("network.kind", network.kind, reads)
    axes = KINDS[network.kind].axes
    channels = len(network.mean)
    if len(network.shape) != len(axes) or (channels and network.shape[-1] != channels):
        ends = f", {channels} of them" * bool(channels)
        yield f"network.shape: found {network.shape}, expected ({', '.join(axes)}){ends}"
    if (channels > 0) != (network.kind == "image") or len(network.std) != channels:
        yield (
            f"network.std: found {len(network.std)} numbers and {channels} means; expected one of each for "
            "every channel of an image, and none for other inputs"
        )
    if network.kind == "embedding":
        yield from _differs("network.shape", network.shape, [network.arguments.get("dimension")])
    yield from _differs("network.resize", network.resize is None, network.kind != "image")


def _accountants(certificate: Certificate) -> Iterator[str]:
    """Run both accountants again for every epsilon, and yield the differences from their results."""
    proven = _proven(certificate)
    again = certificate.model_copy(update=proven)
    yield from _differs(
        "", *(each.model_dump(mode="json", include=set(proven)) for each in (certificate, again))
    )


def _proven(certificate: Certificate) -> dict[str, Any]:
    """Return the fields that accountants prove, from the stated noise multipliers."""
    noise, tuning, choice = certificate.noise, None, certificate.tuning
    if choice is None:
        noise = _certified(noise, "noise")
        certified = noise.certified_epsilon
    else:
        tuning = certify_tuning_again(choice.tuning_noise(certificate.epsilon, certificate.delta))
        certified = tuning.total_epsilon
        choice = certify_tuning(tuning, choice.candidates, choice.score)
    earlier = [
        each.model_copy(update={"noise": _certified(each.noise, f"releases.earlier.{index}.noise")})
        if each.noise
        else each
        for index, each in enumerate(certificate.releases.earlier)
    ]
    new = certificate.model_copy(update={"noise": noise}).in_ledger("0" * 64)
    pld = epsilon_by_pld(noise, tuning)
    if noise.accountant in FORMER_ACCOUNTANTS and math.isclose(
        pld, certificate.pld_epsilon, rel_tol=1e-3
    ):  # without the allowance for rounding
        pld = certificate.pld_epsilon
    return {
        "certified_epsilon": certified,
        "pld_epsilon": pld,
        "attacks": best_attacks(noise, tuning),
        "noise": noise,
        "tuning": choice,
        "releases": released_together(earlier, new),
    }


# Several releases have equal calibrations.
_certify_once = lru_cache(maxsize=1024)(certify_again)


def _certified(noise: Calibration, where: str) -> Calibration:
    """Run both accountants; an error says where the calibration stands."""
    try:
        return _certify_once(noise)
    except CalibrationError as error:
        raise CalibrationError(f"{where}: {error}") from None


def _architecture(network: Network) -> Architecture:
    return Architecture(
        library=network.library, name=network.architecture, arguments=network.arguments
    )


def _parameter_mistakes(
    folder: Path, certificate: Certificate, prepared: PreparedBackbone | None
) -> Iterator[str]:
    """Compare parameters with the architecture, and frozen parameters with the backbone's weights."""
    network = certificate.network
    yield from _differs("files", sorted(certificate.files), sorted(network.binary_files))
    if network.tokenizer is None and (folder / TOKENIZER).exists():
        yield f"{TOKENIZER}: is not a file of a release of this kind"
    try:
        found, trained, frozen = files.outline(
            _architecture(network), network.method, len(network.classes), network.features
        )
    except BackboneError as error:
        yield f"network: {error}"
        return
    for name, expected in found.items():
        given = getattr(network, name)
        if isinstance(given, ReleasedFeatures):  # only the place where they are read is derived
            given = {"module": given.module, "side": given.side}
        yield from _differs(f"network.{name}", given, expected)
    for name, layout in ((TRAINED, trained), (FROZEN, frozen)):
        mistakes = [f"{name}: {each}" for each in files.tensor_mistakes(folder / name, layout)]
        yield from mistakes
        # Hash only files that fit the network; others may be huge.
        if not mistakes and checksum(folder / name) != certificate.files.get(name):
            yield f"{name}: is not the file that the certificate is about"
    if network.tokenizer is not None:
        yield from _tokenizer_mistakes(files.file_content(folder, TOKENIZER), certificate)
    if prepared is not None:
        yield from _differs("network.backbone", network.backbone, prepared.metadata.checksum)
        initial = build_model(prepared.folder, network.method, len(network.classes), seed=1)
        yield from _value_mistakes(folder / FROZEN, initial)


def _tokenizer_mistakes(written: bytes, certificate: Certificate) -> Iterator[str]:
    import tokenizers  # noqa: PLC0415

    found = hashlib.sha256(written).hexdigest()
    if found != certificate.files.get(TOKENIZER):
        yield f"{TOKENIZER}: is not the file that the certificate is about"
        return
    vocabulary = vocabulary_size(tokenizers.Tokenizer.from_str(written.decode()))
    identity = TokenizerIdentity(vocabulary=vocabulary, checksum=found)
    stated = certificate.network.tokenizer
    yield from _differs("network.tokenizer", stated and stated.model_dump(), identity.model_dump())


def _value_mistakes(file: Path, initial: nn.Module) -> Iterator[str]:
    _, frozen = files.split_state(initial)
    with safe_open(file, framework="pt") as stored:
        for name in sorted(frozen.keys() & set(stored.keys())):
            if not torch.equal(stored.get_tensor(name), frozen[name]):
                yield f"{file.name}: {name}: found other numbers than the backbone has"


# -- comparison with the study ------------------------------------------------------------------


def compare(
    folder: Path, study: Study, paths: Paths | None = None, ledger: Path | None = None
) -> None:
    """Compare the certificate in a folder with a section `release`, its data and its backbone.

    Args:
        folder: of a release.
        study: the study with the section.
        paths: of the study's data and backbone; they are compared if they are prepared.
        ledger: has the checksum and the sources of the data, which certificates do not contain.

    Raises:
        ReleaseError: they differ, with a line with both values for each difference; or the certificate is
            missing, damaged or not a certificate.
        StudyError: the study has no section.
    """
    plan = ReleasePlan(study)
    found, _ = _read(folder)
    files.refuse(
        f"{folder}: has a release with other settings than `release` in the study. No model can be made "
        "again: take the section back, or move the folder away for another release, which spends epsilon a "
        "second time:",
        itertools.chain(
            differences("", found, plan.decided(), partial=True),
            _numbers_that_differ(found, plan),
            _data_that_differ(found, plan, paths, ledger),
        ),
    )


def _numbers_that_differ(found: dict[str, Any], plan: ReleasePlan) -> Iterator[str]:
    study, dataset = plan.study, plan.dataset
    if len(found["network"]["classes"]) != dataset.classes:
        yield (
            f"classes: the certificate has {len(found['network']['classes'])}, the dataset "
            f"{dataset.classes}"
        )
    backbone = study.backbones[plan.sweep.backbone]
    if backbone.library != "transformers" and not backbone.described_at:
        added = dict.fromkeys(found["network"]["arguments"].keys() - backbone.arguments.keys())
        yield from differences(
            "network.arguments", found["network"]["arguments"], added, partial=True
        )
    setting = study.training.precision
    if setting != "auto" and not study.trains_on_vectors(plan.sweep.problem.name):
        yield from differences("precision", found["precision"], setting)


def _data_that_differ(
    found: dict[str, Any], plan: ReleasePlan, paths: Paths | None, ledger: Path | None
) -> Iterator[str]:
    """Compare the data by checksum and source, and the backbone by checksum, if they are prepared."""
    dataset, backbone = plan.sweep.dataset, plan.sweep.backbone
    line = Ledger(ledger).line_of(fingerprint(found)) if ledger else None
    if line is not None:
        place = origins(plan.dataset.source)
        if line.origins != place:
            yield f"data: the model was made of {_places(line.origins)}, the study reads {_places(place)}"
    if paths is None:
        return
    with suppress(DatasetError):
        metadata = read_metadata(paths.dataset(dataset))
        if line is not None and metadata.checksum != line.data:
            yield (
                f"data: the model was made of data with the checksum {line.data}, {paths.dataset(dataset)} "
                f"has {metadata.checksum}"
            )
        names = {"classes": list(metadata.classes), "shape": list(metadata.shape)}
        yield from differences("network", found["network"], names, partial=True)
    with suppress(BackboneError):
        prepared = PreparedBackbone.open(paths.backbone(backbone)).metadata
        yield from differences("network.backbone", found["network"]["backbone"], prepared.checksum)


def _places(found: Origins) -> str:
    return ", ".join("/".join(parts).replace("//", "/") for parts in found)
