"""Comparison of a release with its study: every difference is named."""

import copy
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.release.releases import FIXED, PRIVATE, put, value_at
from tests.training.tiny_study import prepare, tiny_sections

from dpsweep.base.files import read_checked_json, write_checked_json
from dpsweep.models.backbone import PreparedBackbone, write_backbone
from dpsweep.release import CARD, CERTIFICATE, TRAINED, ReleaseError
from dpsweep.release.train import train_and_score, write_release
from dpsweep.release.verify import compare, verify
from dpsweep.study import Study, StudyError
from dpsweep.study.paths import Paths
from dpsweep.training.context import load_trainable
from dpsweep.training.trial import evaluate, train_trial

SECTION: dict[str, Any] = PRIVATE | {
    **{"batch_size": [64, "full"], "clipping_bound": "automatic", "epsilon": 9.5, "epochs": [3]},
    **{"mean_trials": 2.5, "shape": 0.5, "holdout_share": 0.25},
}
"""A section in which every parameter differs from its default."""


def sections() -> dict[str, Any]:
    found = tiny_sections(
        {"automatic_clipping_gamma": 0.05, "engine": "vmap", "precision": "float32"},
        {"kind": "lora", "rank": 2, "target_modules": ["qkv"]},
        optimizer="sgd",
    )
    return found | {"release": SECTION, "privacy": {"delta": 2e-5, "step_rounding": "ceil"}}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    study = Study.model_validate(sections())
    paths = Paths(tmp_path_factory.mktemp("study") / "results")
    prepare(study, paths.results)
    write_release(study, paths)
    return paths


def test_a_release_with_every_parameter_off_its_default(made):
    """The certificate agrees with the section, with verification and with the study."""
    found = verify(made.release)
    study = Study.model_validate(sections())
    compare(made.release, study, made, made.ledger)
    stated = found.tuning
    assert (found.epsilon, found.delta) == (9.5, 2e-5)
    assert (stated.mean_trials, stated.shape) == (2.5, 0.5)
    assert (found.step_rounding, found.automatic_clipping_gamma) == ("ceil", 0.05)
    assert (found.optimizer.identity(), found.engine, found.precision) == ("sgd", "vmap", "float32")
    assert [each.clipping_bound for each in stated.candidates] == ["automatic"] * 4
    size = found.split.train_size
    schedules = {(each.batch_size, each.epochs, each.steps) for each in stated.candidates}
    assert schedules == {(64, 3, 3 * -(-size // 64)), (size, 3, 3)}
    assert {each.steps for each in stated.noise} == {each.steps for each in stated.candidates}
    assert {each.delta for each in stated.noise} == {2e-5 / 2.5}
    assert found.certified_epsilon == pytest.approx(
        stated.first_epsilon + 1.5 * stated.second_epsilon
    )
    assert found.network.method.kind == "lora"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (put("datasets", "digits", "title", value="Others"), "dataset: "),
        (put("datasets", "digits", "image_size", value=16), "network.resize.size: "),
        (put("datasets", "digits", "interpolation", value="nearest"), "network.resize.interpolation: "),
        (put("datasets", "digits", "classes", value=9), "classes: the certificate has 10"),
        (put("backbones", "vit", "mean", value=[0.4]), "network.mean.0: "),
        (put("backbones", "vit", "std", value=[0.4]), "network.std.0: "),
        (put("backbones", "vit", "arguments", "num_heads", value=4), "network.arguments.num_heads: "),
        (put("backbones", "vit", "arguments", "drop_rate", value=0.5), "network.arguments.drop_rate: "),
        (put("methods", "method", value={"kind": "film"}), "network.method.kind: "),
        (put("training", "automatic_clipping_gamma", value=0.01), "automatic_clipping_gamma: "),
        (put("training", "engine", value="auto"), "engine: "),
        (put("training", "precision", value="bfloat16"), "precision: "),
        (put("privacy", "step_rounding", value="round"), "step_rounding: "),
        (put("privacy", "delta", value=1e-5), "delta: found 2e-05, expected 1e-05"),
        (put("sweeps", "digits", "optimizer", value="adam"), "optimizer: "),
        (put("release", "epsilon", value=1.0), "epsilon: found 9.5, expected 1.0"),
        (put("release", "learning_rate", value=[0.003, 0.02]),
         "candidates.1.learning_rate: found 0.01, expected 0.02"),
        (put("release", value=FIXED), "expected None"),
        (put("release", "mean_trials", value=3.0), "tuning.mean_trials: "),
        (put("release", "shape", value=1.0), "tuning.shape: "),
        (put("release", "holdout_share", value=0.1), "split.holdout_share: "),
        (put("datasets", "digits", "source", value={"kind": "glyphs"}), "data: the model was made of"),
    ],
)  # fmt: skip
def test_differences_from_the_study_are_named(change, said, made):
    content = copy.deepcopy(sections())
    change(content)
    study = Study.model_validate(content)
    with pytest.raises(ReleaseError, match=re.escape(said)):
        compare(made.release, study, made, made.ledger)


def test_a_study_without_the_section_is_refused(made):
    study = Study.model_validate({k: each for k, each in sections().items() if k != "release"})
    with pytest.raises(StudyError, match="release: missing; allowed: a section"):
        compare(made.release, study)


@pytest.mark.parametrize(
    "place", [("precision",), ("network", "classes"), ("network", "arguments")]
)
def test_a_certificate_without_a_field_is_refused_by_its_name(place, made, tmp_path):
    folder = Path(shutil.copytree(made.release, tmp_path / "release"))
    content = read_checked_json(folder / CERTIFICATE)
    del value_at(content, place[:-1])[place[-1]]
    write_checked_json(folder / CERTIFICATE, content)
    with pytest.raises(ReleaseError, match=rf"{'.'.join(place)}: Field required"):
        compare(folder, Study.model_validate(sections()))


def test_another_backbone_is_named(made, tmp_path):
    paths = Paths(Path(shutil.copytree(made.results, tmp_path / "results")))
    known = PreparedBackbone.open(paths.backbone("vit")).metadata
    other = known.model_dump(exclude={"checksum"}) | {"std": (0.7,)}
    write_backbone(paths.backbone("vit"), {}, **other)
    study = Study.model_validate(sections())
    with pytest.raises(ReleaseError, match=r"network\.backbone: "):
        compare(paths.release, study, paths, made.ledger)


# -- an average of parameters ----------------------------------------------------------------------

AVERAGE = {"kind": "tail", "share": 0.5}


def averaging(average: dict[str, Any] | None = AVERAGE) -> Study:
    found = tiny_sections({}, {"kind": "film"}, optimizer="mine", batch_size=[64])
    released = {"release": FIXED | {"epochs": [4], "learning_rate": [0.1]}}
    mine = {"kind": "adam", "schedule": "cosine", "average": average}
    return Study.model_validate(found | released | {"optimizers": {"mine": mine}})


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return prepare(averaging(), tmp_path_factory.mktemp("averaged") / "results")


@pytest.fixture(scope="module")
def folder(prepared):
    return write_release(averaging(), prepared.paths)


def test_the_averaged_model_is_released_and_named(folder, prepared):
    found = verify(folder)
    written = read_checked_json(folder / CERTIFICATE)["optimizer"]
    assert written == {"kind": "adam", "schedule": "cosine", "average": AVERAGE}
    assert "an average of the parameters over the steps" in (folder / CARD).read_text()
    context = prepared.context()
    model = context.model(1)
    load_trainable(model, load_file(folder / TRAINED))
    assert evaluate(model, context, context.test)["accuracy"] == found.test_accuracy
    compare(folder, averaging(), prepared.paths, prepared.paths.ledger)


def test_the_average_is_scored_and_kept(prepared):
    spec, context = prepared.spec(steps=17), prepared.context()
    # A public stream may be drawn again.
    record, parameters, _ = train_and_score(spec, context, b"")
    trial, arrays = train_trial(spec, context, None, 1e9, b"")
    for name, value in parameters.items():
        np.testing.assert_array_equal(value, arrays[f"average/{name}"])
        assert (value != arrays[f"epoch{spec.epochs}/{name}"]).any()
    model = context.model(spec.seed)
    load_trainable(model, {name: torch.from_numpy(each) for name, each in parameters.items()})
    measured = evaluate(model, context, context.test)
    assert record["accuracy"] == trial.record["accuracy"] == measured["accuracy"]
    assert record["loss"] == measured["loss"]


@pytest.mark.parametrize("average", [None, {"kind": "ema", "decay": 0.9}, AVERAGE | {"share": 0.2}])
def test_another_average_than_that_of_the_study_is_refused(average, folder, prepared):
    other = averaging(average)
    with pytest.raises(ReleaseError, match=r"optimizer(\.average)?(\.\w+)?: found "):
        compare(folder, other, prepared.paths, prepared.paths.ledger)
