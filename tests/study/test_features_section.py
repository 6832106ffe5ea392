"""Features may use one example at a time, and only a head trains on them."""

from pathlib import Path
from typing import Any

import pytest
from tests.study.small import complaints, load_small

from dpsweep.study.cells import FeatureSource

HEAD = {
    "methods/head": {"kind": "head"},
    "sweeps/flat/method": "head",
    "sweeps/automatic/method": "head",
}


@pytest.mark.parametrize(
    "features", [{}, {"layer": "blocks.5", "transformation": "layer-norm"}, {"pooling": "mean"}]
)
def test_a_head_trains_on_features(tmp_path: Path, features: dict[str, Any]) -> None:
    study = load_small(tmp_path, HEAD | {"backbones/pretrained/features": features})
    assert all(study.features(problem) is not None for problem in study.problems)
    assert study.feature_sources() == [FeatureSource("digits", "pretrained")]


@pytest.mark.parametrize("name", ["standardise", "whitening", "pca", "batch-norm"])
def test_what_is_estimated_from_several_examples_is_refused(tmp_path: Path, name: str) -> None:
    edits = HEAD | {"backbones/pretrained/features": {"transformation": name}}
    (found,) = complaints(tmp_path, edits)
    assert found.startswith("backbones.pretrained.features.transformation: ")
    assert f'found "{name}"; allowed: layer-norm or unit-norm' in found


@pytest.mark.parametrize("layer", ["blocks[5]", "../blocks", "blocks.5/attn", ""])
def test_a_layer_is_a_dotted_name(tmp_path: Path, layer: str) -> None:
    (found,) = complaints(tmp_path, HEAD | {"backbones/pretrained/features": {"layer": layer}})
    assert found.startswith("backbones.pretrained.features.layer: ")


def test_other_methods_train_the_whole_network(tmp_path: Path) -> None:
    edits = {"backbones/pretrained/features": {"layer": "blocks.5"}}
    found = complaints(tmp_path, edits)
    assert found[0].startswith(
        "sweeps.flat.method: found one of kind film with a backbone that has"
    )


def test_a_network_without_weights_has_no_features(tmp_path: Path) -> None:
    edits = HEAD | {"backbones/pretrained/weights": {"kind": "random"}}
    (found, *_) = complaints(tmp_path, edits | {"backbones/pretrained/features": {}})
    assert found.startswith("sweeps.flat.backbone: found features of a network without weights")
