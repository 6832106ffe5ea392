"""Forged certificates: edited, with the fingerprint and the card of the edited one."""

import copy
import json
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from tests.training.tiny_study import N

from dpsweep.base.files import (
    canonical_json,
    checksum,
    read_checked_json,
    write_checked_json,
    write_text,
)
from dpsweep.release import CARD, CERTIFICATE, FROZEN, TRAINED, ReleaseError
from dpsweep.release.card import model_card
from dpsweep.release.certificate import NOT_KNOWN, Certificate
from dpsweep.release.verify import not_known, verify
from dpsweep.study.paths import Paths

Place = tuple[Any, ...]
Change = Callable[[dict[str, Any]], Any]
Forge = Callable[[str, Change], Path]
Tensors = dict[str, torch.Tensor]


@pytest.fixture
def forge(results: Path, tmp_path: Path) -> Forge:
    def forged(name: str, change: Change) -> Path:
        folder = tmp_path / name
        if not folder.exists():
            shutil.copytree(results / name, folder)
        content = read_checked_json(results / name / CERTIFICATE)
        change(content)
        write(folder, content)
        return folder

    return forged


def write(folder: Path, content: dict[str, Any]) -> None:
    """Write a certificate with its fingerprint, and its card where it has one."""
    write_checked_json(folder / CERTIFICATE, content)
    try:
        write_text(folder / CARD, model_card(Certificate.model_validate(content)))
    except (ValidationError, ArithmeticError, LookupError):
        return


def places(content: Any, place: Place = ()) -> Iterator[Place]:
    """Every field of a certificate: lists and mappings, and what is in them.

    Of a list its ends: what lies between is read as they are.
    """
    if place:
        yield place
    items: Any = ()
    if isinstance(content, dict):
        items = content.items()
    elif isinstance(content, list):
        items = [(index, content[index]) for index in sorted({0, len(content) - 1}) if content]
    for key, value in items:
        yield from places(value, (*place, key))


def value_at(content: Any, place: Place) -> Any:
    for key in place:
        content = content[key]
    return content


def replaced(content: dict[str, Any], place: Place, value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(content)
    value_at(changed, place[:-1])[place[-1]] = value
    return changed


def others(value: Any, text: SearchStrategy[str]) -> SearchStrategy[Any]:
    """Other values of the type of a value; numbers differ by more than their rounding."""
    match value:
        case bool():
            found = st.just(not value)
        case int():
            near = st.sampled_from([value - 1, value + 1, 2 * value, 0, -value])
            found = near | st.integers()
        case float():
            near = st.floats(0.9, 1.1).map(lambda factor: value * factor)
            special = st.sampled_from([0.0, -value, math.inf, -math.inf, math.nan, 1.7, -5.0])
            found = near | special | st.floats()
            return found.filter(lambda other: not math.isclose(other, value, rel_tol=1e-5))
        case str():
            found = text
        case None:
            found = st.integers() | st.floats() | text | st.just({}) | st.just([])
        case list():
            changed = [value[:-1], value[1:], [], [*value, *value[:1]]]
            longer = st.lists(text, min_size=1).map(lambda added: value + added)
            found = st.sampled_from(changed) | longer
        case _:
            fewer = [{k: v for k, v in value.items() if k != key} for key in value]
            found = st.tuples(text, text).map(lambda pair: value | {pair[0]: pair[1]})
            found = st.sampled_from(fewer) | found if fewer else found
    return found.filter(lambda other: other != value)


def listed(place: Place) -> bool:
    """Whether a field, or what it is a part of, is listed as one that nobody can know."""
    name = ".".join("*" if isinstance(key, int) else str(key) for key in place)
    scheduled = place[:2] == ("tuning", "candidates") and place[-1] in SCHEDULE
    return not scheduled and any(name == each or name.startswith(f"{each}.") for each in NOT_KNOWN)


# Of a candidate, what its noise depends on.
SCHEDULE = {"epochs", "batch_size", "steps"}


def put(*path: str | int, value: Any = None, factor: float = 1.0) -> Change:
    """A change of one field: to a value, or by a factor."""

    def change(content: dict[str, Any]) -> None:
        outer = value_at(content, path[:-1])
        outer[path[-1]] = factor * outer[path[-1]] if value is None else value

    return change


@pytest.mark.parametrize(
    ("name", "change", "line"),
    [
        ("tuned", put("pld_epsilon", factor=1.001), "pld_epsilon: found"),
        ("tuned", put("certified_epsilon", factor=0.99), "certified_epsilon: found"),
        ("tuned", put("attacks", 0, "advantage", factor=0.99), "attacks.0.advantage: found"),
        (
            "fixed",
            put("attacks", 3, "true_positive_rates", 1, value=0.5),
            "attacks.3.true_positive",
        ),
        ("tuned", put("delta", value=1.5 / N), "delta: found"),
        ("tuned", put("setting", "learning_rate", value=0.02), "setting: is not among"),
        ("tuned", put("tuning", "score_noise", factor=0.9), "tuning.score_noise: found"),
        ("tuned", put("tuning", "gamma", factor=0.9), "tuning.gamma: found"),
        ("tuned", put("epsilon", factor=0.99), "first_epsilon + (shape + 1) second_epsilon: found"),
        ("tuned", put("releases", "joint_epsilon", factor=0.9), "releases.joint_epsilon: found"),
        ("tuned", put("split", "held_out", value=1), "noise.train_size: found"),
        ("tuned", put("split", "holdout_share", value=0.3), "split.held_out: found"),
        ("tuned", put("setting", "steps", value=7), "noise.steps: found"),
        ("fixed", put("setting", "epochs", value=2), "setting.steps: do not follow"),
        (
            "fixed",
            lambda content: content["noise"].pop("noise_multiplier"),
            "noise.noise_multiplier: Field required",
        ),
    ],
)
def test_the_line_of_a_mistake_names_what_is_wrong(
    name: str, change: Change, line: str, forge: Forge
) -> None:
    with pytest.raises(ReleaseError) as refused:
        verify(forge(name, change))
    lines = [each.strip() for each in str(refused.value).splitlines()]
    assert any(each.startswith(line) for each in lines), lines


@pytest.mark.parametrize("name", ["tuned", "fixed"])
def test_a_field_that_is_changed_is_refused_or_listed(
    name: str, results: Path, forge: Forge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpsweep.base.limited.SECONDS", 1)  # numbers of layers may be any
    content = read_checked_json(results / name / CERTIFICATE)
    fields = [place for place in places(content) if not listed(place)]
    assert len(fields) > 60
    found = {str(value) for place in fields if isinstance(value := value_at(content, place), str)}
    # Words that a certificate could have there, beside any text.
    words = sorted(found | {"none", "automatic", "opacus", "analytic gaussian", "prv"})
    text = st.sampled_from(words) | st.text()

    for place in fields:

        @settings(max_examples=2, database=None, suppress_health_check=list(HealthCheck))
        @given(others(value_at(content, place), text))
        def changed(value: Any) -> None:
            other = replaced(content, place, value)  # noqa: B023 (called at once)
            # JSON does not tell 8.0 from 8.
            if canonical_json(other) == canonical_json(content):
                return
            with pytest.raises(ReleaseError):
                verify(forge(name, lambda whole: whole.update(other)))

        changed()


@pytest.mark.parametrize("name", ["tuned", "fixed"])
def test_listed_fields_cannot_be_known(name: str, results: Path, forge: Forge) -> None:
    """The list is no longer than it must be: for each field there is a change that verifies."""
    changes: dict[str, tuple[Place, Any]] = {
        "title": (("title",), "Another"),
        "dataset": (("dataset",), "Another"),
        "setting.clipping_bound": (("setting", "clipping_bound"), 0.1),
        "setting.learning_rate": (("setting", "learning_rate"), 0.003),
        "tuning.candidates": ((), None),
        "tuning.score": (("tuning", "score"), 50.0),
        "step_rounding": (("step_rounding",), "ceil"),
        "optimizer": (("optimizer",), "sgd"),
        "precision": (("precision",), "bfloat16"),
        "engine": (("engine",), "vmap"),
        "device": (("device",), "cuda"),
        "split.holdout_share": (("split", "holdout_share"), 0.2 + 1e-12),
        "earlier_sweeps": (("earlier_sweeps",), ["one"]),
        "earlier_trials": (("earlier_trials",), 7),
        "releases.earlier.*.certificate": (("releases", "earlier", 0, "certificate"), "0" * 64),
        "test_accuracy": (("test_accuracy",), 0.99),
        "network.classes": (("network", "classes", 0), "nought"),
        "network.shape": (("network", "shape", 0), 9),
        "network.resize": (("network", "resize"), {"size": 8, "interpolation": "bicubic"}),
        "network.method.kind": (("network", "method"), {"kind": "scratch"}),
        "network.pretraining": (("network", "pretraining"), {"kind": "hub", "id": "some/where"}),
        "versions": (("versions", "torch"), "1.0"),
    }
    certificate = verify(results / name)
    if certificate.tuning is not None:  # any candidate but the winner, which is drawn at random
        index = int(certificate.tuning.candidates[0] == certificate.setting)
        changes["tuning.candidates"] = ("tuning", "candidates", index, "learning_rate"), 0.001
    # No release here clips automatically.
    assert changes.keys() == NOT_KNOWN.keys() - {"automatic_clipping_gamma"}
    for field in not_known(certificate):
        place, value = changes[field]
        others = ("split.holdout_share", "step_rounding")
        if field == "network.method.kind" or (name == "fixed" and field in others):
            continue  # of other releases than these

        def change(content: dict[str, Any], place: Place = place, value: Any = value) -> None:
            value_at(content, place[:-1])[place[-1]] = value
            if content["network"]["resize"] is not None:
                content["network"]["resize"]["crop"] = None

        verify(forge(name, change))


def scaled(name: str, factor: float) -> Change:
    """Multiply a field of the noise, and what is derived from the noise multiplier."""
    derived = ("cumulative_noise", "effective_noise", "cumulative_effective_noise")

    def change(content: dict[str, Any]) -> None:
        names = (name, *derived) if name == "noise_multiplier" else (name,)
        for each in names:
            content["noise"][each] *= factor
        if name in content:
            content[name] *= factor

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (scaled("noise_multiplier", 0.9995), r"accountant certifies epsilon 2\.001"),
        (scaled("noise_multiplier", 0.9998), "prv accountant certifies epsilon 2.0004"),
        (scaled("noise_multiplier", 1.001), "outside|found"),
        (scaled("certified_epsilon", 0.991), "noise.certified_epsilon: found 1.98"),
        (scaled("certified_epsilon", 1 - 2e-6), "noise.certified_epsilon: found"),
        (scaled("pld_epsilon", 1 + 2e-6), "noise.pld_epsilon: found"),
    ],
)
def test_noise_that_does_not_prove_epsilon(change: Change, message: str, forge: Forge) -> None:
    with pytest.raises(ReleaseError, match=message):
        verify(forge("fixed", change))


def test_a_tuned_model_is_no_fixed_one(forge: Forge) -> None:
    def relabel(content: dict[str, Any]) -> None:
        content["tuning"] = None
        for name in ("epsilon", "delta", "certified_epsilon", "pld_epsilon"):
            content[name] = content["noise"][name]
        content["releases"] = {
            "earlier": [],
            "joint_epsilon": content["epsilon"],
            "joint_delta": content["delta"],
        }

    with pytest.raises(ReleaseError, match=r"split.held_out: found 54 without tuning") as caught:
        verify(forge("tuned", relabel))
    assert len(str(caught.value).splitlines()) == 2


def with_tensors(folder: Path, change: Callable[[Tensors, Tensors], Any]) -> Path:
    """Change both files of parameters, and the checksums of them."""
    trained, frozen = load_file(folder / TRAINED), load_file(folder / FROZEN)
    change(trained, frozen)
    save_file(trained, folder / TRAINED)
    save_file(frozen, folder / FROZEN)
    return folder


def with_checksums(folder: Path) -> Path:
    content = read_checked_json(folder / CERTIFICATE)
    content["files"] = {name: checksum(folder / name) for name in (TRAINED, FROZEN)}
    write(folder, content)
    return folder


def rename(_: Tensors, frozen: Tensors) -> None:
    frozen["backdoor"] = frozen.pop("pos_embed")


def in_both(trained: Tensors, frozen: Tensors) -> None:
    frozen["head.bias"] = trained["head.bias"].clone()


def move(trained: Tensors, frozen: Tensors) -> None:
    trained["pos_embed"] = frozen.pop("pos_embed")


def round_off(_: Tensors, frozen: Tensors) -> None:
    frozen["pos_embed"] = frozen["pos_embed"].half()


def transpose(_: Tensors, frozen: Tensors) -> None:
    frozen["pos_embed"] = frozen["pos_embed"].mT.contiguous()


def destroy(trained: Tensors, _: Tensors) -> None:
    trained["head.bias"][0] = math.nan


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (rename, "frozen.safetensors: backdoor is not among"),
        (in_both, "frozen.safetensors: head.bias is not among"),
        (move, "model.safetensors: pos_embed is not among"),
        (round_off, "frozen.safetensors: pos_embed: found F16"),
        (transpose, r"frozen.safetensors: pos_embed: found F32 \[1, 32, 5\]"),
        (destroy, "head.bias: found numbers that are not finite"),
    ],
)
def test_parameters_are_those_of_the_architecture(
    change: Callable[[Tensors, Tensors], Any], message: str, forge: Forge
) -> None:
    folder = with_checksums(with_tensors(forge("fixed", lambda _: None), change))
    with pytest.raises(ReleaseError, match=message):
        verify(folder)


def test_files_are_those_of_a_release(forge: Forge) -> None:
    folder = forge("fixed", lambda _: None)
    (folder / "extra.bin").touch()
    with pytest.raises(ReleaseError, match=r"extra.bin: is no file of a release"):
        verify(folder)
    (folder / "extra.bin").unlink()
    (folder / FROZEN).write_bytes(bytes(range(256)) * 64)
    with pytest.raises(ReleaseError, match=r"frozen.safetensors: is no file of parameters"):
        verify(with_checksums(folder))


def test_frozen_parameters_are_compared_with_the_backbone(results: Path, forge: Forge) -> None:
    backbone = Paths(results).backbone("vit")
    folder = forge("fixed", lambda _: None)
    verify(folder, backbone)

    def other_numbers(_: Tensors, frozen: Tensors) -> None:
        frozen["pos_embed"] += 1

    with_checksums(with_tensors(folder, other_numbers))
    verify(folder)
    with pytest.raises(ReleaseError, match=r"pos_embed: found other numbers than the backbone"):
        verify(folder, backbone)


def test_releases_of_the_same_data_are_counted(results: Path) -> None:
    """Wherever the earlier ones were moved."""
    first, tuned, fixed = (verify(results / name) for name in ("first", "tuned", "fixed"))
    assert [len(each.releases.earlier) for each in (first, tuned, fixed)] == [0, 1, 2]
    assert first.releases.joint_epsilon == first.epsilon
    for found, epsilons in ((tuned, [8, 8]), (fixed, [8, 8, 2])):
        assert max(epsilons) < found.releases.joint_epsilon <= sum(epsilons)
        assert found.releases.joint_delta == pytest.approx(len(epsilons) * 1e-5)
    assert [each.noise is None for each in fixed.releases.earlier] == [False, True]
    assert "names 2 released before" in (results / "fixed" / CARD).read_text()
    # What the data is must not be published: its checksum confirms a guess of it.
    (data,) = {json.loads(line)["data"] for line in Paths(results).ledger.read_text().splitlines()}
    for file in (results / "fixed").iterdir():
        assert data.encode() not in file.read_bytes()
