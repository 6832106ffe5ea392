"""The folder proves which parameters trained, and not by which method it is said."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from tests.release.releases import FIXED, forge, put, release
from tests.training.tiny_study import prepare, tiny_sections

from dpsweep.release import FROZEN, TRAINED, ReleaseError
from dpsweep.release.certificate import FORGEABLE_CLAIMS
from dpsweep.release.section import compare
from dpsweep.release.verify import unverifiable_claims, verify
from dpsweep.study import Study
from dpsweep.study.paths import Paths

Method = dict[str, Any]
FILM: Method = {"kind": "film"}
LORA: Method = {"kind": "lora", "rank": 2, "target_modules": ["qkv", "fc1"]}
EVERY_LAYER = ["cls_token", "pos_embed", "patch_embed", "blocks.0.attn", "blocks.0.mlp"]


def study(method: Method) -> Study:
    sections = tiny_sections({}, method)
    return Study.model_validate(sections | {"release": FIXED, "privacy": {"delta": 1e-5}})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Paths]:
    found = {}
    for method in (FILM, LORA):
        paths = Paths(tmp_path_factory.mktemp(method["kind"]) / "results")
        prepare(study(method), paths.results)
        release(study(method), paths)
        found[method["kind"]] = paths
    return found


def rewritten(paths: Paths, method: Method, folder: Path) -> Path:
    """Return a copy of a release whose certificate has another method, with its checksums and card."""
    shutil.copytree(paths.release, folder)
    forge(folder, put("network", "method", value=method))
    return folder


@pytest.mark.parametrize(
    ("own", "other"),
    [
        (FILM, {"kind": "all", "freeze": EVERY_LAYER}),
        (FILM, {"kind": "all", "freeze": [f"{each}*" for each in EVERY_LAYER]}),
        (FILM, {"kind": "scratch", "freeze": EVERY_LAYER}),
        (LORA, LORA | {"target_modules": ["attn.qkv", "mlp.fc1"]}),
        (LORA, LORA | {"target_modules": ["fc1", "qkv"]}),
    ],
)
def test_a_method_that_trains_the_same_parameters_is_listed_and_refused_for_its_study(
    own: Method, other: Method, made: dict[str, Paths], tmp_path: Path
) -> None:
    paths = made[own["kind"]]
    folder = rewritten(paths, other, tmp_path / "release")
    assert "network.method" in unverifiable_claims(verify(folder, ledger="none"))
    named = study(own)
    with pytest.raises(ReleaseError, match=r"network\.method"):
        compare(folder, named, named.release)
    with pytest.raises(ReleaseError, match="ledger"):
        verify(folder, ledger=paths.ledger)


@pytest.mark.parametrize(
    ("own", "other"),
    [
        (FILM, {"kind": "all"}),
        (FILM, {"kind": "head"}),
        (FILM, {"kind": "all", "freeze": EVERY_LAYER[1:]}),
        (FILM, {"kind": "film", "freeze": ["norm"]}),
        (LORA, LORA | {"rank": 3}),
        (LORA, LORA | {"target_modules": ["qkv"]}),
        (LORA, LORA | {"freeze": ["blocks.0.attn.*"]}),
        (LORA, LORA | {"target_modules": ["qkv", "fc1", "fc2"], "freeze": ["blocks.0.mlp.fc2"]}),
    ],
)
def test_a_method_that_trains_other_parameters_is_refused(
    own: Method, other: Method, made: dict[str, Paths], tmp_path: Path
) -> None:
    folder = rewritten(made[own["kind"]], other, tmp_path / "release")
    with pytest.raises(ReleaseError, match=r"(model|frozen).safetensors: "):
        verify(folder, ledger="none")


def test_parameters_may_be_moved_between_both_files(made: dict[str, Paths], tmp_path: Path) -> None:
    """So the list of what an attacker can change together names the method."""
    folder = Path(shutil.copytree(made["film"].release, tmp_path / "release"))
    trained, frozen = load_file(folder / TRAINED), load_file(folder / FROZEN)
    save_file(trained | frozen, folder / TRAINED)
    save_file({}, folder / FROZEN)

    def change(content: Any) -> None:
        content["network"]["method"] = {"kind": "all"}
        content["network"]["trained_parameters"] = sum(
            each.numel() for each in (trained | frozen).values()
        )

    forge(folder, change)
    verify(folder, ledger="none")
    assert "network.method" in FORGEABLE_CLAIMS
    named = study(FILM)
    with pytest.raises(ReleaseError, match=r"network\.method\.kind"):
        compare(folder, named, named.release)
