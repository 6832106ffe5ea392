from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models.parameter_counts import parameter_counts
from torch import nn

from dpsweep.models.architecture import Architecture, BackboneError
from dpsweep.models.architectures import create, seeded, state_without_head
from dpsweep.models.backbone import PreparedBackbone, write_backbone
from dpsweep.models.build import (
    apply_method,
    build_model,
    head_parameter_names,
    trainable_parameters,
)
from dpsweep.study.config import AllParameters, Film, HeadOnly, LoRA, Method, Scratch

FILM = Film(kind="film")
HEAD = HeadOnly(kind="head")
ALL = AllParameters(kind="all")
SCRATCH = Scratch(kind="scratch")
LORA = LoRA(kind="lora", rank=2, target_modules=["qkv", "attn.proj"])

SMALL_VIT: dict[str, Any] = {
    "img_size": 8,
    "patch_size": 4,
    "in_chans": 1,
    "embed_dim": 32,
    "depth": 2,
    "num_heads": 2,
}

SMALL_RESNET: dict[str, Any] = {"stem_width": 4}


def make_backbone(
    folder: Path,
    name: str = "vit_tiny_patch16_224",
    arguments: dict[str, Any] | None = None,
    *,
    library: str = "timm",
    pretrained: bool = False,
) -> Path:
    architecture = Architecture(library=library, name=name, arguments=arguments or {})
    state = {}
    if pretrained:
        with seeded(1234):
            state = state_without_head(create(architecture, 5))
    write_backbone(
        folder,
        name="toy",
        title="Toy",
        architecture=architecture,
        mean=(0.5,),
        std=(0.5,),
        pretraining={"kind": "file" if pretrained else "random"},
        parameters=1,
        state=state,
    )
    return folder


@pytest.fixture
def pretrained(tmp_path: Path) -> Path:
    return make_backbone(tmp_path / "pretrained", arguments=SMALL_VIT, pretrained=True)


@pytest.fixture
def random(tmp_path: Path) -> Path:
    return make_backbone(tmp_path / "random", arguments=SMALL_VIT)


def images(count: int = 3) -> torch.Tensor:
    return torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def values(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.named_parameters()}


# -- which parameters train ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "classes", "normalisation", "head"),
    [
        ("vit_tiny_patch16_224", 397, 9_600, 76_621),
        # 41,344 in the residual blocks, 2 x 2,048 in the normalisation before the head.
        ("resnetv2_50x1_bit", 100, 41_344 + 4_096, 204_900),
        ("vit_base_patch16_224", 397, 38_400, 305_293),
    ],
)
def test_film_counts_of_the_papers_backbones(
    tmp_path: Path, name: str, classes: int, normalisation: int, head: int
) -> None:
    counts = parameter_counts(build_model(make_backbone(tmp_path, name), FILM, classes, seed=1))
    assert counts.head == head
    assert counts.trainable == normalisation + head


def test_film_trains_normalisation_layers_and_head_only(pretrained: Path) -> None:
    model = build_model(pretrained, FILM, 10, seed=1)
    layers = {name.rpartition(".")[0] for name in trainable_parameters(model)}
    normalisations = {f"blocks.{block}.norm{norm}" for block in (0, 1) for norm in (1, 2)}
    assert layers == normalisations | {"norm", "head"}


def test_head_only(pretrained: Path) -> None:
    assert set(trainable_parameters(build_model(pretrained, HEAD, 10, seed=1))) == {
        "head.weight",
        "head.bias",
    }


@pytest.mark.parametrize("method", [ALL, SCRATCH])
def test_everything_trains(random: Path, method: Method) -> None:
    model = build_model(random, method, 10, seed=1)
    # In the order of their names.
    assert list(trainable_parameters(model)) == sorted(name for name, _ in model.named_parameters())


def test_lora_trains_adapters_of_its_targets_and_the_head(pretrained: Path) -> None:
    model = build_model(pretrained, LORA, 10, seed=1)
    layers = {f"blocks.{block}.attn.{layer}" for block in (0, 1) for layer in ("qkv", "proj")}
    adapters = {f"{layer}.lora_{factor}.default.weight" for layer in layers for factor in "AB"}
    assert set(trainable_parameters(model)) == adapters | {"head.weight", "head.bias"}
    # Two factors of rank 2: 32 -> 96 for qkv, 32 -> 32 for the projection.
    assert parameter_counts(model).trainable == 2 * 2 * ((32 + 96) + (32 + 32)) + 330


def test_the_head_of_a_convolutional_network_is_found(tmp_path: Path) -> None:
    model = build_model(make_backbone(tmp_path, "resnetv2_50x1_bit"), HEAD, 7, seed=1)
    assert head_parameter_names(model) == {"head.fc.weight", "head.fc.bias"}


# -- initial values --------------------------------------------------------------------------


@pytest.mark.parametrize("method", [FILM, HEAD, ALL, LORA])
def test_training_starts_from_a_zero_head(pretrained: Path, method: Method) -> None:
    model = build_model(pretrained, method, 10, seed=1).eval()
    assert torch.all(model(images()) == 0)


def test_from_scratch_the_head_is_initialised(random: Path) -> None:
    assert torch.all(build_model(random, SCRATCH, 10, seed=1)(images()).abs().sum(dim=1) > 0)


@pytest.mark.parametrize("method", [FILM, HEAD, ALL, LORA])
def test_stored_weights_are_loaded(pretrained: Path, method: Method) -> None:
    model = build_model(pretrained, method, 10, seed=1)
    found = {name.replace(".base_layer.", "."): value for name, value in values(model).items()}
    for name, stored in PreparedBackbone.open(pretrained).state().items():
        torch.testing.assert_close(found[name], stored, rtol=0, atol=0)


def test_lora_starts_at_the_backbone_and_adds_b_times_a(pretrained: Path) -> None:
    model = build_model(pretrained, LORA, 10, seed=1).eval()
    plain = build_model(pretrained, HEAD, 10, seed=1).eval()
    layer, plain_layer = model.blocks[0].attn.qkv, plain.blocks[0].attn.qkv  # type: ignore[index,union-attr]
    batch = torch.randn(4, 32, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(layer(batch), plain_layer(batch))
    down, up = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    nn.init.normal_(up)
    assert down.shape == (2, 32)
    # alpha = rank: the product is added as it is.
    torch.testing.assert_close(layer(batch), plain_layer(batch) + batch @ (up @ down).T)
    torch.testing.assert_close(layer.train()(batch), layer.eval()(batch))


@pytest.mark.parametrize("method", [FILM, SCRATCH, LORA])
def test_a_random_backbone_is_a_function_of_the_seed_alone(random: Path, method: Method) -> None:
    first = values(build_model(random, method, 10, seed=1))
    torch.manual_seed(77)
    before = torch.get_rng_state()
    again = values(build_model(random, method, 10, seed=1))
    assert torch.equal(torch.get_rng_state(), before)
    other = values(build_model(random, method, 10, seed=2))
    for name, value in first.items():
        torch.testing.assert_close(value, again[name], rtol=0, atol=0)
    weight = next(
        name for name in first if name.startswith("blocks.0.attn.qkv.") and name.endswith("weight")
    )
    assert not torch.equal(first[weight], other[weight])


# -- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [FILM, HEAD, ALL, SCRATCH])
def test_batch_normalisation_needs_public_statistics(tmp_path: Path, method: Method) -> None:
    with pytest.raises(BackboneError, match=r"ResNet has batch normalisation \(bn1: BatchNorm"):
        build_model(make_backbone(tmp_path, "resnet18"), method, 10, seed=1)


def test_public_statistics_are_loaded_and_film_trains_scale_and_bias(tmp_path: Path) -> None:
    folder = make_backbone(tmp_path, "resnet10t", SMALL_RESNET, pretrained=True)
    stored = PreparedBackbone.open(folder)
    state = {key: 0.5 + torch.rand_like(value) if key.endswith(("_mean", "_var")) else value
             for key, value in stored.state().items()}  # fmt: skip
    write_backbone(folder, state=state, **stored.metadata.model_dump(exclude={"checksum"}))
    model = build_model(folder, FILM, 10, seed=1)
    for name, value in model.named_buffers():
        assert torch.equal(value, state[name])
    layers = {name for name, each in model.named_modules() if isinstance(each, nn.BatchNorm2d)}
    expected = {f"{name}.{each}" for name in layers for each in ("weight", "bias")}
    assert set(trainable_parameters(model)) == expected | {"fc.weight", "fc.bias"}


def test_lora_adapts_pointwise_convolutions_as_peft_does(tmp_path: Path) -> None:
    folder = make_backbone(tmp_path, "convnext_atto", pretrained=True)
    method = LoRA(kind="lora", rank=2, target_modules=["mlp.fc1"])
    model = build_model(folder, method, 10, seed=1)
    names = [name for name in trainable_parameters(model) if ".lora_" in name]
    assert len(names) == 2 * sum(name.endswith("mlp.fc1") for name, _ in model.named_modules())
    with pytest.raises(BackboneError, match=r"conv_dw.*\(not linear\).*mlp\.fc1"):
        build_model(folder, method.model_copy(update={"target_modules": ["conv_dw"]}), 10, seed=1)


def test_pretrained_weights_do_not_train_from_scratch(pretrained: Path) -> None:
    with pytest.raises(BackboneError, match="kind: random"):
        build_model(pretrained, SCRATCH, 10, seed=1)


@pytest.mark.parametrize(
    ("targets", "found"),
    [
        (["qkv", "query"], "'query' matches no layer"),
        (["qkv", "proj"], r"'proj' matches patch_embed\.proj"),
        (["qkv", "norm1"], r"'norm1' matches blocks\.0\.norm1"),
        (["head"], "'head' matches only the classification head "),
        (["qkv", "head"], "'head' matches only the classification head "),
    ],
)
def test_lora_targets_must_be_linear_layers_and_more_than_the_head(
    pretrained: Path, targets: list[str], found: str
) -> None:
    method = LoRA(kind="lora", rank=1, target_modules=targets)
    with pytest.raises(BackboneError, match=rf"{found}.*allowed: .*attn\.qkv"):
        build_model(pretrained, method, 10, seed=1)


def test_lora_leaves_a_head_that_is_a_convolution_alone(tmp_path: Path) -> None:
    folder = make_backbone(tmp_path, "resnetv2_50x1_bit")
    with pytest.raises(BackboneError, match=r"head\.fc \(not linear\).*0\.conv1"):
        build_model(folder, LoRA(kind="lora", rank=1, target_modules=["fc"]), 10, seed=1)


def test_lora_leaves_the_head_alone_where_a_name_matches_both(tmp_path: Path) -> None:
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 12}
    architecture = Architecture(
        library="transformers", name="roberta", arguments=small | {"intermediate_size": 16}
    )
    model = create(architecture, 3)
    apply_method(model, LoRA(kind="lora", rank=1, target_modules=["dense"]))
    names = trainable_parameters(model)
    assert any("attention.output.dense.lora_A" in name for name in names)
    assert "network.classifier.dense.weight" in names
    assert not any("classifier" in name and "lora" in name for name in names)


@pytest.mark.parametrize("method", [HEAD, FILM, ALL])
def test_two_heads_start_at_zero_and_both_train(tmp_path: Path, method: Method) -> None:
    small = {"img_size": 32, "depth": 1, "embed_dim": 24}
    folder = make_backbone(tmp_path, "deit_tiny_distilled_patch16_224", small, pretrained=True)
    model = build_model(folder, method, 7, seed=1).eval()
    heads = {"head.weight", "head.bias", "head_dist.weight", "head_dist.bias"}
    assert head_parameter_names(model) == heads
    assert heads <= trainable_parameters(model).keys()
    batch = torch.rand(3, 3, 32, 32)
    assert torch.all(model(batch) == 0)
    for name in heads:
        nn.init.normal_(model.get_parameter(name))
    both = model(batch)
    for name in ("head.weight", "head.bias"):
        nn.init.zeros_(model.get_parameter(name))
    assert (model(batch) - both).abs().min() > 0


def test_film_needs_normalisation_layers(tmp_path: Path) -> None:
    folder = make_backbone(tmp_path, "vgg11", {"in_chans": 1})
    with pytest.raises(BackboneError, match="has none"):
        build_model(folder, FILM, 10, seed=1)


@pytest.mark.parametrize(
    ("library", "name", "arguments", "message"),
    [
        ("timm", "vit_of_dreams", {}, "vit_of_dreams"),
        ("timm", "vit_tiny_patch16_224", {"wings": 2}, "wings"),
        ("dpsweep", "vit_tiny_patch16_224", {}, "allowed: .*wide_resnet of library dpsweep"),
        ("dpsweep", "wide_resnet", {"depth": 15}, "found depth 15"),
    ],
)
def test_unknown_architectures_are_refused(
    tmp_path: Path, library: str, name: str, arguments: dict[str, Any], message: str
) -> None:
    folder = make_backbone(tmp_path, name, arguments, library=library)
    with pytest.raises(BackboneError, match=message):
        build_model(folder, FILM, 10, seed=1)


def test_a_missing_backbone_is_to_be_prepared(tmp_path: Path) -> None:
    with pytest.raises(BackboneError, match=r"metadata\.json is missing") as raised:
        build_model(tmp_path / "nowhere", FILM, 10, seed=1)
    assert raised.value.remake == (tmp_path / "nowhere" / "metadata.json",)


def test_changed_files_are_noticed(pretrained: Path) -> None:
    weights, metadata = pretrained / "model.safetensors", pretrained / "metadata.json"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(BackboneError, match="checksum"):
        build_model(pretrained, FILM, 10, seed=1)
    weights.write_bytes(content)
    metadata.write_text(metadata.read_text().replace('"num_heads": 2', '"num_heads": 4'))
    with pytest.raises(BackboneError, match="edited"):
        build_model(pretrained, FILM, 10, seed=1)


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    folder = make_backbone(tmp_path, arguments=SMALL_VIT | {"depth": 3}, pretrained=True)
    stored = PreparedBackbone.open(folder)
    facts = stored.metadata.model_dump(exclude={"checksum"})
    facts["architecture"]["arguments"] = SMALL_VIT
    write_backbone(folder, stored.state(), **facts)
    with pytest.raises(BackboneError, match=r"unexpected blocks\.2"):
        build_model(folder, FILM, 10, seed=1)


# -- checksums -------------------------------------------------------------------------------


def test_checksum_is_of_what_determines_the_network(tmp_path: Path) -> None:
    def checksum(number: int, **changes: Any) -> str:
        description: dict[str, Any] = {
            "name": "toy",
            "title": "Toy",
            "architecture": Architecture(library="timm", name="a", arguments={"depth": 2}),
            "mean": (0.5,),
            "std": (0.5,),
            "pretraining": {"kind": "file", "path": "a"},
            "parameters": 1,
            "state": {"weight": torch.zeros(2)},
        }
        folder = tmp_path / str(number)
        return write_backbone(folder, **(description | changes)).metadata.checksum

    same = [
        checksum(0),
        checksum(1, title="Other", name="other"),
        checksum(2, pretraining={"kind": "file", "path": "b"}),
    ]
    assert len(set(same)) == 1
    different = [
        checksum(3, mean=(0.4,)),
        checksum(4, std=(0.4,)),
        checksum(5, state={"weight": torch.ones(2)}),
        checksum(6, architecture=Architecture(library="timm", name="b", arguments={"depth": 2})),
        checksum(7, architecture=Architecture(library="timm", name="a", arguments={"depth": 3})),
    ]
    assert len({*same, *different}) == 6


def test_what_film_leaves_out_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    unknown = make_backbone(tmp_path / "unknown", "convnextv2_atto")
    known = make_backbone(tmp_path / "known", arguments=SMALL_VIT)
    build_model(unknown, HEAD, 2, seed=1)
    build_model(known, FILM, 2, seed=1)
    assert caplog.text == ""
    build_model(unknown, FILM, 2, seed=1)
    assert "toy: FiLM leaves out GlobalResponseNorm (stages.0.blocks.0.mlp.grn" in caplog.text
