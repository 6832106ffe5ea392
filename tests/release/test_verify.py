"""Damaged and forged releases are refused with a message; nothing outside is opened or run."""

import copy
import json
import math
import os
import random
import re
import shutil
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from tests.release.releases import Change, Content, derive_checksums, put, seal, value_at
from tests.release.releases import forge as forge_checksums
from tests.training.tiny_study import N

from dpsweep.base.errors import DpsweepError
from dpsweep.base.files import canonical_json, read_checked_json
from dpsweep.privacy.calibration import calibrate
from dpsweep.release import CARD, CERTIFICATE, FROZEN, TRAINED, ReleaseError
from dpsweep.release.certificate import (
    FORGEABLE_CLAIMS,
    UNVERIFIABLE_CLAIMS,
    Certificate,
    ReleasedModel,
    best_attacks,
)
from dpsweep.release.ledger import released_together
from dpsweep.release.verify import _contradictions, verify
from dpsweep.study.paths import Paths

OUTSIDE = ("socket.connect", "socket.getaddrinfo", "subprocess", "os.system")


def refused(folder: Path) -> str:
    """Check that a folder is refused in bounded processor time; return the message."""
    start = time.process_time()
    with pytest.raises(DpsweepError) as found:
        verify(folder)
    assert time.process_time() - start < 8
    said = str(found.value)
    assert said.replace("\n  ", "").isprintable() and len(said) < 10_000
    return said


# -- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [CERTIFICATE, TRAINED])
@pytest.mark.parametrize("make", [lambda file: file.symlink_to("/etc/passwd"), Path.mkdir])
def test_files_are_regular_files_of_the_folder(make, name, folder):
    (folder / name).unlink()
    make(folder / name)
    assert f"{name}: found a link, a folder, a pipe or a device; allowed: a file" in refused(folder)


def test_large_files_are_not_read(folder):
    for name in (CERTIFICATE, CARD, TRAINED):
        size = (folder / name).stat().st_size
        os.truncate(folder / name, 2**41)  # with holes
        assert f"{name}: found {2**41} bytes; allowed: at most" in refused(folder)
        os.truncate(folder / name, size)


def test_paths_other_than_release_folders_are_refused(folder, tmp_path):
    assert "cannot be read: No such file" in refused(tmp_path / "nowhere")
    assert "cannot be read: Not a directory" in refused(folder / CARD)
    for index in range(30):
        (folder / f"a\n\x1b[31m{index}").touch()
    assert "is not a file of a release" in refused(folder)


@pytest.mark.parametrize("name", [CERTIFICATE, TRAINED, FROZEN, CARD])
def test_edited_and_missing_files_are_found(name, folder):
    content = bytearray((folder / name).read_bytes())
    content[-3] ^= 1
    (folder / name).write_bytes(content)
    assert name in refused(folder)
    (folder / name).unlink()
    assert re.search(f"{name}: missing|no release, {name} is missing", refused(folder))


# -- JSON -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("earlier_trials",), False, "earlier_trials: Input should be a valid integer"),
        (("earlier_trials",), 0.0, "earlier_trials: Input should be a valid integer"),
        (("epsilon",), 8, "certificate.epsilon: found 8, expected 8.0"),
        (("epsilon",), math.inf, "epsilon: Input should be a finite number"),
        (("test_accuracy",), math.nan, "test_accuracy: Input should be a finite number"),
        (("network", "mean"), [math.inf], "network.mean.0: Input should be a finite number"),
        (("noise", "certified_epsilon"), math.nan, "noise.certified_epsilon"),
        (("guarantee",), "none", "guarantee: Extra inputs are not permitted"),
    ],
)
def test_fields_are_read_strictly(place, value, said, folder):
    forge_checksums(folder, put(*place, value=value))
    assert said in refused(folder)


def test_invalid_certificates_are_refused(folder):
    whole = (folder / CERTIFICATE).read_bytes()
    for written in (b"", b"\xff\xfe{}", b"null", b"{}"):
        (folder / CERTIFICATE).write_bytes(written)
        refused(folder)
    (folder / CERTIFICATE).write_bytes(whole.replace(b'"delta": 1e-05', b'"delta": 1e-06', 1))
    assert "damaged or edited" in refused(folder)


def test_free_text_contains_no_markup_and_stays_on_its_line(folder):
    evil = "Pets\n\n**(0.1, 1e-9)-private** <img src=x> [a](https://b.c) `x` | www.d.e \u202e # \x1b[31m"

    def change(content):
        content |= {"dataset": evil, "title": evil, "earlier_sweeps": [evil]}
        content["network"]["classes"][0] = evil
        content["network"]["pretraining"] = {"kind": evil}

    before = (folder / CARD).read_text()
    forge_checksums(folder, change)
    verify(folder)
    card = (folder / CARD).read_text()
    # A sweep adds a few lines to every card.
    assert len(card.splitlines()) <= len(before.splitlines()) + 5
    for mark in ("**(", "<img", "[a]", "https://", "www.", "\u202e", "\x1b", " | www"):
        assert mark not in card
    assert "Pets\\\\n\\\\n\\*\\*(0.1, 1e-9)-private" in card


# -- networks -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"architecture": "hf-hub:timm/vit_tiny_patch16_224.augreg_in21k"},
        {"arguments": {"checkpoint_path": "/etc/passwd"}},
        {"arguments": {"depth": 10**9}},
        {"arguments": {"embed_dim": 10**15}},
        {"arguments": {"x=__import__('os').system('id')#": 1}},
        {"library": "dpsweep", "architecture": "wide_resnet", "arguments": {"width": 10**12}},
        {"library": "transformers", "architecture": "bert",
         "arguments": {"name_or_path": "/etc/passwd", "trust_remote_code": True}},
    ],
    ids=lambda change: str(change)[:60],
)  # fmt: skip
def test_hostile_networks_are_refused_in_bounded_time(change, folder):
    """Nothing outside is read, and no connection is opened."""
    opened: list[str] = []

    def changed(content):
        own = {} if "library" in change else content["network"]["arguments"]
        arguments = own | change.get("arguments", {})
        content["network"] |= change | {"arguments": arguments}

    def outside(event, arguments):
        if event.startswith(OUTSIDE) or (event == "open" and str(arguments[0]).startswith("/etc/")):
            opened.append(event)  # a hook cannot be removed

    forge_checksums(folder, changed)
    sys.addaudithook(outside)
    assert "network" in refused(folder)
    assert opened == []


Place = tuple[Any, ...]
AVERAGE = {"kind": "tail", "share": 0.5}
EVERY_LAYER = ["cls_token", "pos_embed", "patch_embed", "blocks.0.attn", "blocks.0.mlp"]
BACKBONE_DIFFERS = "pos_embed: found other numbers than the backbone"


@pytest.fixture
def forge(results, tmp_path):
    """Return a function that copies a release and changes and seals its certificate."""

    def forged(name, change=lambda _: None):
        folder = tmp_path / name
        if not folder.exists():
            shutil.copytree(results / name, folder)
        content = read_checked_json(results / name / CERTIFICATE)
        change(content)
        seal(folder, content)
        return folder

    return forged


def noise(name: str, factor: float) -> Change:
    """Multiply a field of the noise and the quantities derived from it."""
    derived = ("cumulative_noise", "effective_noise", "cumulative_effective_noise")

    def change(content):
        for each in (name, *(derived if name == "noise_multiplier" else ())):
            content["noise"][each] *= factor
        if name in content:
            content[name] *= factor

    return change


def relabel(content: Content) -> None:
    """Present a tuned model as one of a fixed setting."""
    names = ("epsilon", "delta", "certified_epsilon", "pld_epsilon")
    content |= {"tuning": None} | {name: content["noise"][name] for name in names}
    joint = {"joint_epsilon": content["epsilon"], "joint_delta": content["delta"]}
    content["releases"] = {"earlier": []} | joint


@pytest.mark.parametrize(
    ("name", "change", "line"),
    [
        ("tuned", put("pld_epsilon", factor=1.001), "pld_epsilon: found"),
        ("tuned", put("certified_epsilon", factor=1 - 2e-6), "certified_epsilon: found"),
        ("tuned", put("attacks", 0, "advantage", factor=0.99), "attacks.0.advantage: found"),
        ("fixed", put("attacks", 3, "true_positive_rates", 1, value=0.5), "attacks.3.true_positive"),
        ("tuned", put("delta", value=1.5 / N), "delta: found"),
        ("tuned", put("setting", "learning_rate", value=0.02), "setting: is not among"),
        ("tuned", put("tuning", "score_noise", factor=0.9), "tuning.score_noise: found"),
        ("tuned", put("tuning", "gamma", factor=0.9), "tuning.gamma: found"),
        ("tuned", put("epsilon", factor=0.99), "first_epsilon + (shape + 1) second_epsilon: found"),
        ("tuned", put("releases", "joint_epsilon", factor=0.9), "releases.joint_epsilon: found"),
        ("tuned", put("split", "held_out", value=1), "noise.train_size: found"),
        ("tuned", put("split", "holdout_share", value=0.3), "split.held_out: found"),
        ("tuned", put("setting", "steps", value=7), "noise.steps: found"),
        ("tuned", relabel, "split.held_out: found 54 without tuning"),
        ("fixed", put("setting", "epochs", value=2), "setting.steps: do not follow"),
        ("fixed", lambda content: content.pop("split"), "split: Field required"),
        ("fixed", noise("noise_multiplier", 0.998), "noise: noise multiplier"),
        ("fixed", noise("noise_multiplier", 1.004), "noise: noise multiplier"),
        ("first", noise("certified_epsilon", 1 - 2e-6), "noise.certified_epsilon: found"),
        ("first", noise("pld_epsilon", 1 + 2e-6), "noise.pld_epsilon: found"),
        # Invalid optimizers are refused, although the optimizer does not change epsilon.
        ("fixed", put("optimizer", value="lion"), "optimizer"),
        ("fixed", put("optimizer", value={"kind": "adam"}), "certificate.optimizer"),
        ("fixed", put("optimizer", value={"kind": "adam", "average": AVERAGE | {"share": 2.0}}), "optimizer"),
        ("fixed", put("optimizer", value={"kind": "adam", "title": "Perfect", "average": AVERAGE}),
         "certificate.optimizer"),
    ],
)  # fmt: skip
def test_the_message_names_the_wrong_field(name, change, line, forge):
    with pytest.raises(ReleaseError) as refused:
        verify(forge(name, change))
    lines = [each.strip() for each in str(refused.value).splitlines()]
    assert any(each.startswith(line) for each in lines), lines


def of_all_noise(name: str, factor: float) -> Change:
    """Multiply a field of every calibration of the trials."""

    def change(content):
        for each in (content["noise"], *content["tuning"]["noise"]):
            each[name] *= factor

    return change


def larger_than_the_data(content: Content) -> None:
    size = content["split"]["examples"]
    content["setting"] |= {"batch_size": size + 1, "steps": content["setting"]["epochs"]}


@pytest.mark.parametrize(
    ("name", "change", "line"),
    [
        ("tuned", of_all_noise("delta", 0.5), "noise.delta: found"),
        ("tuned", of_all_noise("epsilon", 0.5), "noise.epsilon: found"),
        ("tuned", put("tuning", "noise", -1, "delta", factor=0.5), "tuning.noise.1.delta: found"),
        ("tuned", put("tuning", "noise", -1, "epsilon", factor=0.5), "tuning.noise.1.epsilon: found"),
        ("fixed", larger_than_the_data, "setting.steps: do not follow"),
        ("fixed", put("releases", "earlier", 0, "epsilon", factor=0.5), "releases.earlier.0: found another"),
        ("fixed", put("releases", "earlier", 0, "delta", factor=0.5), "releases.earlier.0: found another"),
    ],
)  # fmt: skip
def test_a_contradiction_is_found_by_arithmetic_alone(name, change, line, results):
    """The accountants refuse some of these too, which must not hide that a condition is missing."""
    content = read_checked_json(results / name / CERTIFICATE)
    assert list(_contradictions(Certificate.model_validate(content))) == []
    change(content)
    found = list(_contradictions(Certificate.model_validate(content)))
    assert any(each.startswith(line) for each in found), found


# -- every field ----------------------------------------------------------------------------------


def places(content: Any, place: Place = ()) -> Iterator[Place]:
    """Yield every field of a certificate: lists, mappings and their items; of lists only both ends."""
    if place:
        yield place
    items: Any = ()
    if isinstance(content, dict):
        items = content.items()
    elif isinstance(content, list):
        items = [(index, content[index]) for index in sorted({0, len(content) - 1}) if content]
    for key, value in items:
        yield from places(value, (*place, key))


def others(value: Any, words: Sequence[str]) -> list[Any]:
    """Return what a field may be changed to: other values, words and types; numbers beyond their rounding."""
    found: list[Any] = [0, 1.5, "automatic", {}, []]
    match value:
        case bool():
            found = [not value, int(value), None]
        case int():
            found = [value - 1, value + 1, 2 * value, 0, -value, float(value), str(value), None]
        case float():
            near = [factor * value for factor in (0.9, 0.999, 1.001, 1.1)]
            found = [*near, 0.0, -value, math.inf, math.nan, str(value), None]
        case str():
            found = [*words, "", f"{value} ", value.upper(), 1, None]
        case list():
            found = [value[:-1], value[1:], [], [*value, *value[:1]], [*value, "more"], None]
        case dict():
            fewer = [{k: v for k, v in value.items() if k != key} for key in value]
            found = [*fewer, value | {"more": "text"}, None]
    return found


def listed(place: Place) -> bool:
    """Return whether a field, or an outer field, is listed as one that verification cannot check."""
    name = ".".join("*" if isinstance(key, int) else str(key) for key in place)
    # The fields of a candidate that determine its noise are checked.
    schedule = ("epochs", "batch_size", "steps")
    scheduled = place[:2] == ("tuning", "candidates") and place[-1] in schedule
    return not scheduled and f"{name}.".startswith(
        tuple(f"{each}." for each in UNVERIFIABLE_CLAIMS)
    )


@pytest.mark.parametrize("name", ["tuned", "fixed"])
def test_a_changed_field_is_refused_or_listed(name, results, forge):
    content = read_checked_json(results / name / CERTIFICATE)
    # Those of the noise are the same in both, and most changes of them need the accountants.
    fields = [
        place
        for place in places(content)
        if not listed(place) and (name == "tuned" or "noise" not in place)
    ]
    assert len(fields) > 40
    found = {str(value) for place in fields if isinstance(value := value_at(content, place), str)}
    # Strings that a certificate could contain.
    words = sorted(found | {"none", "automatic", "opacus", "analytic gaussian", "prv"})
    chosen, tried = random.Random(name), 0
    for place in fields:
        # In canonical JSON 8.0 equals 8.
        own = canonical_json(value := value_at(content, place))
        different = [each for each in others(value, words) if canonical_json(each) != own]
        count = 1 if "noise" in place else 2
        for other in chosen.sample(different, min(count, len(different))):
            changed = copy.deepcopy(content)
            value_at(changed, place[:-1])[place[-1]] = other
            with pytest.raises(ReleaseError):
                verify(forge(name, lambda whole, changed=changed: whole.update(changed)))
                pytest.fail(f"{place}: {other!r} verifies")
            tried += 1
    assert tried > 80


# -- every number derived again -------------------------------------------------------------------


def derive(content: Content) -> None:
    """Derive the numbers of a release on full batches from those that the attacker has chosen."""
    size, setting = content["split"]["examples"], content["setting"]
    setting |= {"batch_size": size, "steps": setting["epochs"]}
    noise = calibrate(content["epsilon"], content["delta"], size, size, setting["steps"])
    own = {"certificate": "0" * 64, "noise": noise}
    new = ReleasedModel.model_validate(own | {name: content[name] for name in ("epsilon", "delta")})
    earlier = [ReleasedModel.model_validate(each) for each in content["releases"]["earlier"]]
    content |= {
        "noise": noise.to_dict(),
        "pld_epsilon": noise.pld_epsilon,
        "certified_epsilon": noise.certified_epsilon,
        "releases": released_together(earlier, new).model_dump(mode="json"),
        "attacks": [asdict(each) for each in best_attacks(noise, None)],
    }


@pytest.mark.parametrize(
    ("change", "claim"),
    [
        (put("epsilon", value=1.0), "noise"),
        (put("delta", value=1e-9), "noise"),
        (put("split", "examples", value=1000), "split"),
        (lambda content: content["releases"]["earlier"].clear(), "releases"),
        (lambda content: content["releases"]["earlier"].reverse(), "releases"),
        (put("network", "arguments", "num_heads", value=4), "network"),
        (put("network", "mean", value=[0.1]), "network"),
        (put("optimizer", value="sgd"), "optimizer"),
        (put("title", value="**Free** text\n# here"), "title"),
        (put("network", "arguments", "embed_dim", value=48), None),
        (put("network", "method", value={"kind": "head"}), None),
        (put("network", "method", value={"kind": "all", "freeze": EVERY_LAYER[1:]}), None),
        (lambda content: content["network"]["classes"].append("more"), None),
        (put("delta", value=0.01), None),
    ],
)
def test_a_derived_forgery_is_refused_or_documented_and_refused_beside_the_ledger(
    change, claim, results, forge
):
    def derived(content):
        change(content)
        with warnings.catch_warnings(action="ignore"):  # of a delta of one over N
            derive(content)
        derive_checksums(content, results / "fixed")

    folder = forge("fixed", derived)
    if claim is None:
        with pytest.raises(ReleaseError):
            verify(folder, ledger="none")
        return
    assert claim in UNVERIFIABLE_CLAIMS.keys() | FORGEABLE_CLAIMS.keys()
    verify(folder, ledger="none")
    with pytest.raises(ReleaseError, match="ledger"):
        verify(folder, ledger=results.parent / "releases.jsonl")


# -- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _, frozen: frozen.update(backdoor=frozen.pop("pos_embed")),
         "frozen.safetensors: backdoor is not among"),
        (lambda trained, frozen: frozen.update({"head.bias": trained["head.bias"].clone()}),
         "frozen.safetensors: head.bias is not among"),
        (lambda trained, frozen: trained.update(pos_embed=frozen.pop("pos_embed")),
         "model.safetensors: pos_embed is not among"),
        (lambda _, frozen: frozen.update(pos_embed=frozen["pos_embed"].half()),
         "frozen.safetensors: pos_embed: found F16"),
        (lambda _, frozen: frozen.update(pos_embed=frozen["pos_embed"].mT.contiguous()),
         r"frozen.safetensors: pos_embed: found F32 \[1, 32, 5\]"),
        (lambda trained, _: trained["head.bias"][:1].fill_(math.nan),
         "head.bias: found numbers that are not finite"),
        (lambda _, frozen: frozen["pos_embed"].add_(1), BACKBONE_DIFFERS),
    ],
    ids=["renamed", "in both files", "moved", "rounded", "transposed", "NaN", "others"],
)  # fmt: skip
def test_parameters_are_those_of_the_architecture_and_of_the_backbone(
    change, message, results, forge
):
    """Other numbers of the same shapes are found only by comparison with the backbone."""
    folder, backbone = forge("fixed"), Paths(results).backbone("vit")
    trained, frozen = load_file(folder / TRAINED), load_file(folder / FROZEN)
    change(trained, frozen)
    save_file(trained, folder / TRAINED)
    save_file(frozen, folder / FROZEN)
    forge_checksums(folder)
    if message == BACKBONE_DIFFERS:
        verify(folder)
        verify(results / "fixed", backbone)
    with pytest.raises(ReleaseError, match=message):
        verify(folder, backbone if message == BACKBONE_DIFFERS else None)


def test_releases_of_the_same_data_are_counted(results):
    """They are counted although their folders were moved."""
    first, tuned, fixed = (verify(results / name) for name in ("first", "tuned", "fixed"))
    assert [len(each.releases.earlier) for each in (first, tuned, fixed)] == [0, 1, 2]
    assert first.releases.joint_epsilon == first.epsilon
    for found, epsilons in ((tuned, [8, 8]), (fixed, [8, 8, 2])):
        assert max(epsilons) < found.releases.joint_epsilon <= sum(epsilons)
        assert found.releases.joint_delta == pytest.approx(len(epsilons) * 1e-5)
    assert [each.noise is None for each in fixed.releases.earlier] == [False, True]
    assert "names 2 released before" in (results / "fixed" / CARD).read_text()
    # The checksum of the data must not be published, because it confirms a guess of the data.
    (data,) = {json.loads(line)["data"] for line in Paths(results).ledger.read_text().splitlines()}
    for file in (results / "fixed").iterdir():
        assert data.encode() not in file.read_bytes()
