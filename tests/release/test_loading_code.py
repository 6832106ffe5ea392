"""The ten lines of a model card rebuild the network, whichever library it is from."""

from pathlib import Path
from typing import Any

import pytest
import torch

from dpsweep.models.architectures import create, seeded
from dpsweep.models.backbone import Architecture
from dpsweep.models.build import apply_method, trainable_parameters
from dpsweep.release import FROZEN, TRAINED
from dpsweep.release.card import loading_code
from dpsweep.release.certificate import Network
from dpsweep.release.parameters import head_layers, save_parameters
from dpsweep.study.config import AllParameters, Film, LoRA, Method

VIT = Architecture(
    library="timm",
    name="vit_tiny_patch16_224",
    arguments={"img_size": 8, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2},
)
TEXT = Architecture(
    library="transformers",
    name="distilbert",
    arguments={"vocab_size": 50, "dim": 16, "hidden_dim": 16, "n_layers": 1, "n_heads": 2},
)
WIDE = Architecture(library="dpsweep", name="wide_resnet", arguments={"depth": 10, "width": 1})


@pytest.mark.parametrize(
    ("architecture", "method"),
    [
        (VIT, Film(kind="film")),
        (VIT, LoRA(kind="lora", rank=2, target_modules=["qkv"])),
        (TEXT, LoRA(kind="lora", rank=2, target_modules=["q_lin"])),
        (WIDE, AllParameters(kind="all")),
    ],
    ids=["timm", "timm-lora", "transformers-lora", "dpsweep"],
)
def test_every_parameter_finds_its_place(
    architecture: Architecture, method: Method, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with seeded(0):
        model = create(architecture, classes=3)
        apply_method(model, method)
    trained = {name: torch.randn_like(each) for name, each in trainable_parameters(model).items()}
    save_parameters(model, trained, tmp_path)
    network = Network.model_validate(
        {"library": architecture.library, "architecture": architecture.name}
        | {"arguments": architecture.arguments, "classes": ["a", "b", "c"], "kind": "image"}
        | {"mean": [0.5], "std": [0.5], "shape": [8, 8, 3], "resize": None, "tokenizer": None}
        | {"method": method.model_dump(mode="json"), "head_layers": head_layers(model)}
        | {"backbone": "0" * 64, "weights": "0" * 64}
        | {"pretraining": {"kind": "random"}, "trained_parameters": 1}
    )
    monkeypatch.chdir(tmp_path)
    loaded: dict[str, Any] = {}
    code = loading_code(network)
    assert len(code.splitlines()) <= 10
    assert FROZEN in code and TRAINED in code
    exec(code, loaded)  # noqa: S102 (it is ours)
    expected = model.state_dict() | trained
    found = loaded["model"].state_dict()
    assert len(found) == len(expected)
    for name, each in expected.items():
        assert torch.equal(found[name.removeprefix("network.")], each), name
