"""Features that are computed once: trials equal those with the network, and outdated files are refused."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.training.tiny_study import CPU, Prepared, prepare, tiny_sections

from dpsweep.data.prepare import prepare as prepare_dataset
from dpsweep.data.prepared import DatasetError, PreparedDataset, Resize
from dpsweep.models.backbone import PreparedBackbone, write_backbone
from dpsweep.models.build import build_model
from dpsweep.study import Cell, Study
from dpsweep.study.cells import FeatureSource
from dpsweep.study.clipping import FlatClipping
from dpsweep.study.networks import BackboneError, Features, HeadOnly
from dpsweep.study.paths import Paths
from dpsweep.training import features as stage
from dpsweep.training.context import TrialContext
from dpsweep.training.features import compute_features, open_features, open_inputs
from dpsweep.training.gradient_norms import training_set_norms
from dpsweep.training.physical import PhysicalBatch
from dpsweep.training.trial import train_trial

PROBLEM = "digits_vit_method"
SOURCE = FeatureSource("digits", "vit")


def feature_study(**features: Any) -> Study:
    sections = tiny_sections(
        {}, {"kind": "head"}, epochs=[2], batch_size=[64, "full"], epsilon=[2.0]
    )
    sections["backbones"]["vit"] |= {
        "weights": {"kind": "file", "path": "model.safetensors"},
        "features": features,
    }
    sections["backbones"]["vit"]["arguments"]["depth"] = 2
    return Study.model_validate(sections)


def with_weights(folder: Path, scale: float = 1.0) -> PreparedBackbone:
    """Give a prepared network pretrained weights, or scale those that it has."""
    metadata = PreparedBackbone.open(folder).metadata.model_dump(exclude={"checksum"})
    network = build_model(folder, HeadOnly(kind="head"), classes=2, seed=0)
    state = {
        name: scale * value for name, value in network.state_dict().items() if "head." not in name
    }
    return write_backbone(folder, state, **metadata | {"pretraining": {"kind": "file"}})


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    """A network with weights, a dataset and its features."""
    folder = tmp_path_factory.mktemp("features")
    sections = tiny_sections({}, {"kind": "film"})
    sections["backbones"]["vit"]["arguments"]["depth"] = 2
    made = prepare(Study.model_validate(sections), folder)
    backbone = with_weights(folder / "backbones" / "vit")
    study = feature_study()
    compute_features(study, made.paths, SOURCE)
    data = PreparedDataset.open(str(made.paths.dataset("digits")))  # a notebook may give a string
    return Prepared(study, made.paths, data, backbone)


@pytest.fixture
def copied(computed, tmp_path):
    """A copy of `computed` that a test may change."""
    shutil.copytree(computed.paths.results, tmp_path, dirs_exist_ok=True)
    paths = Paths(tmp_path)
    return computed._replace(paths=paths, backbone=PreparedBackbone.open(paths.backbone("vit")))


@pytest.mark.parametrize("batch_size", [64, "full"])
@pytest.mark.parametrize("bound", [1e-3, 4.0])
def test_a_trial_on_features_equals_one_with_the_network(computed, batch_size, bound):
    study = computed.study
    cell = Cell(PROBLEM, 2.0, 2, batch_size, 1.0)
    on_features = computed._replace(data=open_inputs(study, computed.paths, PROBLEM))
    (spec,) = on_features.specs(study.steps("digits", 2, batch_size), cell).values()
    # The same key names the same streams of sampling and noise.
    spec = replace(spec, clipping=FlatClipping(bound))
    outcomes = []
    for each in (computed, on_features):
        context = each.context()
        trial, parameters = train_trial(spec, context, None, 1e9)
        engine = context.engine("auto", context.model(spec.seed))
        norms, _ = training_set_norms(engine, context, PhysicalBatch(100))
        weights = {key.replace("head.", ""): value for key, value in parameters.items()}
        outcomes.append((trial, weights, norms))
    (in_loop, weights, norms), (cached, cached_weights, cached_norms) = outcomes
    for name, values in weights.items():
        np.testing.assert_allclose(cached_weights[name], values, rtol=1e-3, atol=1e-5)
    np.testing.assert_array_equal(
        cached.steps["sampled_examples"], in_loop.steps["sampled_examples"]
    )
    for name in ("mean_gradient_norm", "clipped_fraction"):
        np.testing.assert_allclose(cached.steps[name], in_loop.steps[name], rtol=1e-4, atol=1e-2)
    assert cached.record["accuracy"] == pytest.approx(in_loop.record["accuracy"], abs=2e-3)
    assert cached.record["loss"] == pytest.approx(in_loop.record["loss"], rel=1e-4)
    np.testing.assert_allclose(cached_norms, norms, rtol=1e-4)
    assert cached.record["trainable_parameters"] == in_loop.record["trainable_parameters"]


@pytest.mark.parametrize("what", ["features", "backbone", "dataset", "version"])
def test_outdated_features_are_refused(copied, monkeypatch, what):
    study, paths, *_ = copied
    features = open_features(study, paths, SOURCE)
    match what:
        case "features":
            study = feature_study(layer="blocks.0")
        case "backbone":
            other = with_weights(paths.backbone("vit"), scale=1.5)
            with pytest.raises(BackboneError, match="found features of backbone"):
                TrialContext(features, other, study.methods["method"], device=CPU)
        case "dataset":
            section = study.datasets["digits"]
            source = section.source.model_copy(update={"seed": 5})
            other = section.model_copy(update={"source": source})
            prepare_dataset("digits", other, paths.dataset("digits"))
        case "version":
            monkeypatch.setattr(stage, "VERSION", stage.VERSION + 1)
    with pytest.raises(DatasetError, match=f"found {what} .* computed again") as complaint:
        open_features(study, paths, SOURCE)
    assert complaint.value.remake == (paths.features(*SOURCE) / "metadata.json",)


def test_impossible_features_are_refused_before_writing(copied, monkeypatch):
    study, paths, _, backbone = copied
    usage = shutil.disk_usage(paths.results)._replace(free=1000)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage)
        with pytest.raises(DatasetError, match="GB are needed"):
            compute_features(study, paths, SOURCE)
    with pytest.raises(BackboneError, match=r'found "blocks\.9".* allowed: blocks'):
        compute_features(feature_study(layer="blocks.9"), paths, SOURCE)
    state = {name: value * float("nan") for name, value in backbone.state().items()}
    metadata = backbone.metadata.model_dump(exclude={"checksum"})
    write_backbone(backbone.folder, state, **metadata)
    with pytest.raises(BackboneError, match="not finite"):
        compute_features(study, paths, SOURCE)


def test_the_network_runs_in_eval_mode_on_inputs_of_its_size(computed, monkeypatch):
    """Every module is in eval mode, without dropout, and stored images are resized first."""
    seen: list[tuple[bool, tuple[int, ...]]] = []

    def look(network, inputs):
        seen.append((any(each.training for each in network.modules()), tuple(inputs.shape[1:])))
        return torch.zeros(len(inputs), 3)

    monkeypatch.setattr(stage, "represent", look)
    resize = Resize(size=16, interpolation="bicubic")
    for update, size in (({}, 8), ({"resize": resize}, 16)):
        known = computed.data.metadata.model_copy(update=update)
        run = stage.FeatureRun(known, computed.backbone, Features(), CPU)
        run(computed.data.train_inputs[:2])
        assert seen.pop() == (False, (1, size, size))
