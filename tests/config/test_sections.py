"""The sections for an audit and for features: their settings, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
from tests.config.small import complaints, load_small

from dpsweep.config.cells import FeatureSource

AUDIT = {
    "sweep": "flat",
    "epsilon": [1, 8],
    "epochs": 4,
    "batch_size": [256, "full"],
    "clipping_bound": 1,
    "learning_rate": 0.01,
}


def test_settings_go_batch_size_by_batch_size(tmp_path: Path) -> None:
    study = load_small(tmp_path, {"audit": AUDIT})
    assert [cell.name for cell in study.audit_cells()] == [
        "eps1_epochs4_B256_C1",
        "eps8_epochs4_B256_C1",
        "eps1_epochs4_Bfull_C1",
        "eps8_epochs4_Bfull_C1",
    ]


def test_a_study_without_audit_has_no_settings(tmp_path: Path) -> None:
    assert load_small(tmp_path, {}).audit_cells() == []


def test_a_batch_may_hold_more_than_the_real_examples(tmp_path: Path) -> None:
    # 1347 digits and 1000 canaries.
    study = load_small(tmp_path, {"audit": AUDIT | {"batch_size": [2346]}})
    assert study.audit_cells()[0].batch_size == 2346


@pytest.mark.parametrize(
    ("changes", "mistake"),
    [
        (
            {"sweep": "flet"},
            'audit.sweep: found "flet"; did you mean flat? allowed: flat, automatic',
        ),
        ({"batch_size": [2347]}, "audit.batch_size: found 2347; allowed: below 2347"),
        ({"guesses": 201}, "audit.guesses: found 201; allowed: an even number up to the canaries"),
        ({"guesses": 1002}, "audit.guesses: found 1002; allowed: an even number"),
        ({"canaries": 60_000}, "audit.canaries: found 60000; allowed: at most 50000"),
        ({"epsilon": [float("inf")]}, "audit.epsilon[0]: found .inf; allowed: a finite number"),
        ({"clipping_bound": "none"}, 'audit.clipping_bound: found "none"; allowed:'),
        ({"canaires": 10}, "audit.canaires: unknown key; did you mean canaries?"),
    ],
)
def test_an_audit_that_is_refused(tmp_path: Path, changes: dict[str, Any], mistake: str) -> None:
    (found,) = complaints(tmp_path, {"audit": AUDIT | changes})
    assert found.startswith(mistake)


# -- features ---------------------------------------------------------------------------------

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
