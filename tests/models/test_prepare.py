"""Backbones: published weights are read without their head, or refused by name; pretraining."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file
from tests.data.pictures import offline
from tests.models.networks import VIT

from dpsweep.base.files import write_json
from dpsweep.data import PreparedDataset
from dpsweep.data.hub import HubError
from dpsweep.data.prepare import prepare as prepare_data
from dpsweep.models.architectures import described_architecture
from dpsweep.models.backbone import PreparedBackbone
from dpsweep.models.prepare import load_weights, prepare, pretrain
from dpsweep.models.preprocess import Normalise
from dpsweep.study import load_study
from dpsweep.study.datasets import Dataset
from dpsweep.study.networks import Architecture, Backbone, BackboneError, Pretraining
from dpsweep.study.paths import Paths

NAME = "vit_tiny_patch16_224"
ARGUMENTS = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2}
NETWORK = Architecture(library="timm", name=NAME, arguments=ARGUMENTS)
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "published.safetensors"


def save_network(path: Path, **changes: Any) -> dict[str, torch.Tensor]:
    """Write the weights of a timm network as others publish them, with a head of 11 classes."""
    model = timm.create_model(NAME, **({"num_classes": 11} | ARGUMENTS | changes))
    state: dict[str, torch.Tensor] = model.state_dict()
    save_file(state, path)
    return state


@pytest.mark.parametrize("classes", [11, 0])
def test_head_of_a_file_is_not_read(path: Path, classes: int) -> None:
    published = save_network(path, num_classes=classes)
    state = load_weights(NETWORK, path)
    assert set(state) == {name for name in published if not name.startswith("head.")}
    for name, value in state.items():
        torch.testing.assert_close(value, published[name], rtol=0, atol=0)


def test_positions_are_adapted_to_another_image_size(path: Path) -> None:
    published, state = save_network(path, img_size=64), load_weights(NETWORK, path)
    assert published["pos_embed"].shape == (1, 65, 16)
    assert state["pos_embed"].shape == (1, 17, 16)
    # The position of the class token does not change.
    torch.testing.assert_close(state["pos_embed"][:, 0], published["pos_embed"][:, 0])


def test_modules_of_a_file_can_be_left_out(path: Path) -> None:
    published = save_network(path, depth=3)
    state = load_weights(NETWORK, path, ["blocks.1", "blocks.2"])
    assert not [key for key in state if key.startswith(("blocks.1", "blocks.2"))]
    for name, value in state.items():
        torch.testing.assert_close(value, published[name], rtol=0, atol=0)
    with pytest.raises(BackboneError, match="Unexpected"):
        load_weights(NETWORK, path, ["blocks.2"])
    with pytest.raises(BackboneError, match=r"leave_out: found blocks\.3; allowed"):
        load_weights(NETWORK, path, ["blocks.3"])
    save_network(path, depth=11)
    with pytest.raises(BackboneError, match=r"blocks\.10"):  # blocks.1 is another module
        load_weights(NETWORK, path, [f"blocks.{number}" for number in range(1, 10)])


class Bomb:
    """An object that runs code when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return Path.touch, (self.target,)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("weights.pth", r"found a \.pth file; allowed: \.safetensors"),
        ("pytorch_model.bin", r"found a \.bin file; allowed: \.safetensors"),
        ("disguised.safetensors", "cannot be read as safetensors"),
    ],
)
def test_pickles_are_refused_unopened(tmp_path: Path, name: str, message: str) -> None:
    torch.save({"bomb": Bomb(tmp_path / "exploded")}, tmp_path / name)
    with pytest.raises(BackboneError, match=message):
        load_weights(NETWORK, tmp_path / name)
    assert not (tmp_path / "exploded").exists()


def test_missing_or_wrong_weights_are_refused(path: Path) -> None:
    with pytest.raises(BackboneError, match=r"published\.safetensors: .*No such file"):
        load_weights(NETWORK, path)
    for changes in ({"depth": 2}, {"embed_dim": 24}):
        save_network(path, **changes)
        with pytest.raises(BackboneError, match=f"does not fit {NAME}"):
            load_weights(NETWORK, path)
    state = save_network(path)
    save_file({name: value for name, value in state.items() if name != "norm.bias"}, path)
    with pytest.raises(BackboneError, match=r"(?s)does not fit.*norm\.bias"):
        load_weights(NETWORK, path)
    state["norm.bias"][3] = torch.nan
    save_file(state, path)
    with pytest.raises(BackboneError, match=r"not finite in norm\.bias"):
        load_weights(NETWORK, path)


# -- the whole stage -----------------------------------------------------------------------------


def made(folder: Path, weights: dict[str, Any], **changes: Any) -> PreparedBackbone:
    known = {"title": "Tiny", "architecture": NAME, "arguments": ARGUMENTS, "mean": [0.1, 0.2, 0.3]}
    section = Backbone.model_validate(known | {"weights": weights} | changes)
    return prepare("tiny", section, Paths(folder))


def test_a_backbone_is_prepared_from_a_file(tmp_path: Path, path: Path) -> None:
    published = save_network(path)
    made(tmp_path, {"kind": "file", "path": str(path)})
    backbone = PreparedBackbone.open(Paths(tmp_path).backbone("tiny"))
    assert backbone.metadata.mean == (0.1, 0.2, 0.3)
    assert backbone.metadata.architecture == NETWORK
    assert backbone.metadata.pretrained
    body = [value for name, value in published.items() if not name.startswith("head.")]
    assert backbone.metadata.parameters == sum(value.numel() for value in body)
    torch.testing.assert_close(backbone.state()["norm.weight"], published["norm.weight"])
    random = made(tmp_path, {"kind": "random"})
    assert not random.metadata.pretrained and random.state() == {}


@pytest.fixture
def snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Disconnect the hub; return the folder for a repository in its cache."""
    cache = offline(monkeypatch, tmp_path)
    return cache / "models--timm--vit_tiny" / "snapshots" / COMMIT


def test_cache_of_the_hub_is_enough_offline(tmp_path: Path, snapshot: Path) -> None:
    """Without the cache, the error contains the command to run."""
    weights = {"kind": "hub", "id": "timm/vit_tiny", "revision": COMMIT}
    with pytest.raises(HubError, match=r"hf download timm/vit_tiny model\.safetensors") as error:
        made(tmp_path, weights)
    assert "weights: {kind: file" in str(error.value)
    snapshot.mkdir(parents=True)
    published = save_network(snapshot / "model.safetensors")
    backbone = made(tmp_path, weights)
    torch.testing.assert_close(backbone.state()["norm.weight"], published["norm.weight"])
    assert backbone.metadata.pretraining["revision"] == COMMIT


# -- networks given by a repository or a folder --------------------------------------------------


@pytest.mark.parametrize(
    "source", ["hf-hub:timm/vit_tiny", "hf-hub:timm/vit_tiny@main", "local-dir:"]
)
def test_published_config_gives_the_architecture_but_no_weights(
    tmp_path: Path, path: Path, snapshot: Path, source: str
) -> None:
    snapshot.mkdir(parents=True)
    save_network(snapshot / "model.safetensors")
    described = {"architecture": NAME, "pretrained_cfg": {}, "model_args": ARGUMENTS}
    write_json(snapshot / "config.json", described)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text(COMMIT)
    mine = save_network(path)
    name = source if source.startswith("hf") else f"{source}{snapshot}"
    weights = {"kind": "file", "path": str(path)}
    backbone = made(tmp_path, weights, architecture=name, arguments={})
    assert backbone.metadata.architecture == NETWORK
    torch.testing.assert_close(backbone.state()["pos_embed"], mine["pos_embed"])


def test_a_network_is_not_described_without_its_weights(tmp_path: Path) -> None:
    """Otherwise the advice would be for the library's width."""
    weights = {"kind": "file", "path": str(tmp_path / "gone.safetensors")}
    known = {"title": "BERT", "library": "transformers", "architecture": "bert", "weights": weights}
    tokenizer = {"kind": "file", "path": str(tmp_path / "tokenizer.json")}
    with pytest.raises(BackboneError, match=r"gone\.safetensors: no such file"):
        described_architecture(Backbone.model_validate(known | {"tokenizer": tokenizer}))


# -- pretraining ---------------------------------------------------------------------------------

SMALL = VIT | {"embed_dim": 16, "depth": 1}
PRETRAINED = Architecture(library="timm", name="vit_tiny_patch16_224", arguments=SMALL)
RECIPE = Pretraining(kind="pretrain", dataset="glyphs", epochs=1, batch_size=32, learning_rate=5e-3)


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    source = {"kind": "glyphs", "characters": "LOXT", "train_per_class": 100, "test_per_class": 50}
    sizes = {"image_size": 8, "classes": 4, "train_size": 400, "test_size": 200}
    section = Dataset.model_validate({"title": "Letters", "source": source} | sizes)
    return prepare_data("letters", section, tmp_path_factory.mktemp("letters"))


def run(
    letters: PreparedDataset, **changes: float
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    recipe = RECIPE.model_copy(update=changes)
    return pretrain(PRETRAINED, Normalise([0.3], [0.35]), recipe, letters)


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, second[name]) for name, value in first.items())


def test_accuracy_is_of_the_test_set(letters: PreparedDataset) -> None:
    # A quarter of the test labels is wrong; a good network predicts the others.
    labels = np.array(letters.test_labels)
    labels[:50] = (labels[:50] + 1) % 4
    state, measured = run(replace(letters, test_labels=labels), epochs=6)
    assert 0.62 < measured["accuracy"] <= 0.77
    assert measured["examples"] == 400
    assert not any(name.startswith("head") for name in state)


def test_seed_determines_the_weights(letters: PreparedDataset) -> None:
    first, measured = run(letters)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    again, measured_again = run(letters)
    assert torch.equal(torch.get_rng_state(), before)
    assert same(first, again)
    assert measured == measured_again
    # With a tiny learning rate, the results are the initial weights.
    start, other = (
        run(letters, learning_rate=1e-20, seed=seed)[0]["blocks.0.attn.qkv.weight"]
        for seed in (0, 1)
    )
    assert not torch.allclose(start, other)
    assert not torch.allclose(start, first["blocks.0.attn.qkv.weight"])
    share, measured = run(letters, train_share=0.25)
    assert measured["examples"] == 100 and not same(share, first)


def test_private_and_public_texts_are_from_different_packages() -> None:
    study = load_study(Path(__file__).parents[2] / "studies" / "demo.yaml")
    sources = (study.datasets[name].source for name in ("docstrings", "docstrings-public"))
    one, other = ({each.split(".")[0] for each in source.modules} for source in sources)
    assert not one & other
