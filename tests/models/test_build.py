"""Models from a backbone and a method: trainable parameters, initial values, and refusals."""

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.gradients.reference import check
from tests.gradients.tiny_models import Case
from tests.models.networks import (
    ALL,
    BERT,
    FILM,
    GPT2,
    HEAD,
    SCRATCH,
    T5,
    VIT,
    make_backbone,
    network,
    parameter_counts,
)
from timm.layers import RmsNorm2d
from timm.layers.grn import GlobalResponseNorm
from torch import Tensor, nn

from dpsweep.models.architectures import create
from dpsweep.models.backbone import PreparedBackbone, write_backbone
from dpsweep.models.build import (
    apply_method,
    build_model,
    head_parameter_names,
    normalises,
    notes_on_film,
    select,
    trainable_parameters,
)
from dpsweep.models.sequence_classifier import Outline, SequenceClassifier
from dpsweep.study.networks import Architecture, BackboneError, LoRA, Method


def lora(*targets: str, rank: int = 2) -> LoRA:
    return LoRA(kind="lora", rank=rank, target_modules=list(targets))


LORA = lora("qkv", "attn.proj")
RESNET = {"stem_width": 4}
PERCEIVER = {"num_latents": 2, "d_latents": 8, "d_model": 8, "num_blocks": 1}


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_backbone(tmp_path_factory.mktemp("pretrained"), arguments=VIT, pretrained=True)


@pytest.fixture(scope="module")
def random(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_backbone(tmp_path_factory.mktemp("random"), arguments=VIT)


def images(count: int = 3) -> Tensor:
    return torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def values(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.named_parameters()}


# -- which parameters train ----------------------------------------------------------------------


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
    name: str, classes: int, normalisation: int, head: int
) -> None:
    model = network(name, {}, "timm", classes, device="meta")
    apply_method(model, FILM)
    assert parameter_counts(model) == (head, normalisation + head)


NORMS = [*(f"blocks.{block}.norm{norm}" for block in (0, 1) for norm in (1, 2)), "norm"]
ADAPTED = [f"blocks.{block}.attn.{layer}" for block in (0, 1) for layer in ("qkv", "proj")]
BESIDE_THE_HEAD = [
    (HEAD, set()),
    (FILM, {f"{layer}.{each}" for layer in NORMS for each in ("weight", "bias")}),
    (LORA, {f"{layer}.lora_{factor}.default.weight" for layer in ADAPTED for factor in "AB"}),
]


@pytest.mark.parametrize(("method", "names"), BESIDE_THE_HEAD)
def test_trainable_parameters_outside_the_head(
    pretrained: Path, method: Method, names: set[str]
) -> None:
    model = build_model(pretrained, method, 10, seed=1)
    assert set(trainable_parameters(model)) == names | {"head.weight", "head.bias"}
    if method is LORA:
        # Two factors of rank 2: 32 -> 96 for qkv, 32 -> 32 for the projection.
        assert parameter_counts(model) == (330, 2 * 2 * ((32 + 96) + (32 + 32)) + 330)


def test_public_statistics_are_loaded_and_film_trains_scale_and_bias(tmp_path: Path) -> None:
    folder = make_backbone(tmp_path, "resnet10t", RESNET, pretrained=True)
    stored = PreparedBackbone.open(folder)
    state = {
        key: 0.5 + torch.rand_like(value) if key.endswith(("_mean", "_var")) else value
        for key, value in stored.state().items()
    }
    write_backbone(folder, state=state, **stored.metadata.model_dump(exclude={"checksum"}))
    model = build_model(folder, FILM, 10, seed=1)
    for name, value in model.named_buffers():
        assert torch.equal(value, state[name])
    layers = {name for name, each in model.named_modules() if isinstance(each, nn.BatchNorm2d)}
    expected = {f"{name}.{each}" for name in layers for each in ("weight", "bias")}
    assert set(trainable_parameters(model)) == expected | {"fc.weight", "fc.bias"}


def test_lora_adapts_pointwise_convolutions_as_peft_does() -> None:
    model = network("convnext_atto", {}, "timm")
    with pytest.raises(BackboneError, match=r"conv_dw.*mlp\.fc1"):
        apply_method(model, lora("conv_dw"))
    apply_method(model, lora("mlp.fc1"))
    names = [name for name in trainable_parameters(model) if ".lora_" in name]
    assert len(names) == 2 * sum(name.endswith("mlp.fc1") for name, _ in model.named_modules())


def test_lora_does_not_adapt_layers_of_the_head() -> None:
    model = network("roberta", BERT)
    apply_method(model, lora("dense"))
    names = trainable_parameters(model)
    assert any("attention.output.dense.lora_A" in name for name in names)
    assert "network.classifier.dense.weight" in names
    assert not any("classifier" in name and "lora" in name for name in names)
    convolutional = network("resnetv2_50x1_bit", {}, "timm", device="meta")
    assert head_parameter_names(convolutional) == {"head.fc.weight", "head.fc.bias"}
    with pytest.raises(BackboneError, match=r"matches head\.fc .*0\.conv1"):
        apply_method(convolutional, lora("fc"))


# -- normalisation layers, whatever the names of their classes -----------------------------------

WIDTH = 6
LLAMA = BERT | {"num_key_value_heads": 2, "head_dim": 4, "pad_token_id": 0}
OWN: dict[str, tuple[dict[str, Any], int, str]] = {
    "llama": (LLAMA, 3, "LlamaRMSNorm"),
    "qwen3": (LLAMA, 5, "Qwen3RMSNorm"),  # also of queries and keys
    "gemma": (LLAMA, 3, "GemmaRMSNorm"),  # scales by 1 + weight
    "t5": (T5, 7, "T5LayerNorm"),
    "deberta": (BERT, 3, "DebertaLayerNorm"),
}


@pytest.mark.parametrize("name", OWN)
def test_film_trains_custom_normalisation_layers(name: str) -> None:
    """It trains all of them, with the reference gradients."""
    arguments, count, kind = OWN[name]
    model = network(name, arguments)
    random = torch.Generator().manual_seed(0)
    for parameter in model.parameters():  # ones would hide errors
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=random)
    assert isinstance(model, SequenceClassifier)
    with torch.device("meta"), Outline():  # an outline has the same layers
        outline = SequenceClassifier.create(name, arguments, 3)
        assert select(model, FILM) == select(outline, FILM)
    assert not notes_on_film(model)
    apply_method(model, FILM)
    layers = {n: each for n, each in model.named_modules() if type(each).__name__ == kind}
    own = {f"{n}.{name}" for n, each in layers.items() for name, _ in each.named_parameters()}
    assert len(layers) == count
    assert trainable_parameters(model).keys() - head_parameter_names(model) == own
    model = model.double()
    texts, labels, mask = model.made_up(3, 6), torch.arange(3), torch.ones(3, dtype=torch.bool)
    # Most of these always normalise in float32.
    check(Case(model, head_parameter_names(model), texts, labels, mask), tolerance=1e-4)


class Layer(nn.Module):
    """A custom layer with vectors of one width as parameters."""

    def __init__(self, function: Callable[..., Any], **shapes: int) -> None:
        super().__init__()
        self.function = function
        for name, width in ({"weight": WIDTH} | shapes).items():
            self.register_parameter(name, nn.Parameter(torch.zeros(width)))

    def forward(self, x: Tensor) -> Any:
        return self.function(x, *self.parameters())


def rms(x: Tensor, weight: Tensor, bias: Tensor | float = 0.0) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt() * (1 + weight) + bias


def standardised(x: Tensor, weight: Tensor, bias: Tensor | float = 0.0) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) * weight + bias


def of_channels(x: Tensor, weight: Tensor) -> Tensor:
    if x.ndim != 4:
        raise ValueError("images")
    return x / x.norm(dim=1, keepdim=True) * weight[:, None, None]


def of_pixels(x: Tensor, weight: Tensor) -> Tensor:
    return x / x.square().mean((2, 3), keepdim=True).sqrt() * weight[:, None, None]


LAYERS: dict[str, tuple[nn.Module, bool]] = {
    "RMS": (Layer(rms), True),
    "RMS and bias": (Layer(rms, bias=WIDTH), True),
    "layer": (Layer(standardised, bias=WIDTH), True),
    "half precision inside": (Layer(lambda x, w: rms(x.bfloat16().float(), w)), True),
    "an option": (Layer(lambda x, w, gate=None: rms(x, w)), True),
    "channels": (Layer(of_channels), True),
    "every channel by itself": (Layer(of_pixels), True),
    "channels last": (Layer(lambda x, w: rms(x, w) if x.shape[3] else x), True),
    "a normalisation and an activation": (Layer(lambda x, w: rms(x, w).relu()), True),
    "timm's": (RmsNorm2d(WIDTH), True),
    "torch's own, of instances": (nn.InstanceNorm2d(WIDTH, affine=True), True),
    "torch's own": (nn.LayerNorm(WIDTH), True),
    "a scale": (Layer(torch.mul), False),
    "a bounded function": (Layer(lambda x, w: w * x.tanh()), False),
    "a gate": (Layer(lambda x, w: x * (w * x).sigmoid()), False),
    "of responses": (GlobalResponseNorm(WIDTH), False),
    "a table": (Layer(lambda x, w: w.expand(x.shape)), False),
    "pairs": (Layer(lambda x, w: (rms(x, w), x)), False),
    "a mean": (Layer(lambda x, w: rms(x, w).mean(-1)), False),
    "a gated one": (Layer(lambda x, y, w: rms(x, w)), False),
    "a length and its factor": (Layer(rms, weight=1), False),
    "two widths": (Layer(lambda x, w, a: rms(x, w), a=1), False),
    "a matrix": (nn.Linear(WIDTH, WIDTH), False),
    "torch's own, without scale": (nn.LayerNorm(WIDTH, elementwise_affine=False), False),
    "a layer around one": (nn.Sequential(Layer(rms)), False),
}


@pytest.mark.parametrize("name", LAYERS)
def test_normalisation_layers_are_recognised(name: str) -> None:
    layer, wanted = LAYERS[name]
    before = {key: value.clone() for key, value in layer.state_dict().items()}
    for each in (layer, copy.deepcopy(layer).to("meta")):
        assert normalises(each) == wanted
    assert all(torch.equal(value, before[key]) for key, value in layer.state_dict().items())


@pytest.mark.parametrize(
    ("library", "name", "arguments", "message"),
    [
        ("timm", "vgg11", {}, "but VGG has none, only layers of class Conv2d, Linear; allowed"),
        ("transformers", "mobilebert",
         BERT | {"embedding_size": 8, "true_hidden_size": 8, "intra_bottleneck_size": 8},
         "has none, only layers of class .*NoNorm; allowed"),
    ],
)  # fmt: skip
def test_networks_without_normalisation_are_refused(
    library: Any, name: str, arguments: dict[str, Any], message: str
) -> None:
    architecture = Architecture(library=library, name=name, arguments=arguments)
    with torch.device("meta"), pytest.raises(BackboneError, match=message):
        select(create(architecture, 3), FILM)


# -- initial values ------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [FILM, HEAD, ALL, LORA])
def test_training_starts_from_stored_weights_and_a_zero_head(
    pretrained: Path, method: Method
) -> None:
    model = build_model(pretrained, method, 10, seed=1).eval()
    assert torch.all(model(images()) == 0)
    found = {name.replace(".base_layer.", "."): value for name, value in values(model).items()}
    for name, stored in PreparedBackbone.open(pretrained).state().items():
        torch.testing.assert_close(found[name], stored, rtol=0, atol=0)


def test_lora_starts_as_the_backbone_and_adds_b_times_a(pretrained: Path) -> None:
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
def test_seed_alone_determines_a_random_backbone(random: Path, method: Method) -> None:
    model = build_model(random, method, 10, seed=1)
    started = model(images()).abs().sum(dim=1) > 0
    assert torch.all(started == (method is SCRATCH)), "from scratch the head is initialised"
    first = values(model)
    torch.manual_seed(77)
    before = torch.get_rng_state()
    again = values(build_model(random, method, 10, seed=1))
    assert torch.equal(torch.get_rng_state(), before)
    other = values(build_model(random, method, 10, seed=2))
    for name, value in first.items():
        torch.testing.assert_close(value, again[name], rtol=0, atol=0)
    weight = next(
        each for each in first if re.fullmatch(r"blocks.0.attn.qkv.(base_layer.)?weight", each)
    )
    assert not torch.equal(first[weight], other[weight])


@pytest.mark.parametrize("method", [HEAD, FILM, ALL])
def test_two_heads_start_at_zero_and_both_train(method: Method, tmp_path: Path) -> None:
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


# -- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("library", "name", "arguments", "message"),
    [
        ("timm", "resnet10t", RESNET, r"ResNet has batch normalisation \(.*: BatchNorm.*allowed: pretrained"),
        ("timm", "vit_of_dreams", {}, "vit_of_dreams"),
        ("timm", "vit_tiny_patch16_224", {"wings": 2}, "wings"),
        ("dpsweep", "vit_tiny_patch16_224", {}, "allowed: .*wide_resnet of library dpsweep"),
        ("dpsweep", "wide_resnet", {"depth": 15}, "found depth 15"),
        ("transformers", "destilbert", {}, "cannot build 'destilbert'"),
        ("transformers", "distilbert", {"dimm": 8}, "unknown arguments dimm; allowed: "),
        ("transformers", "distilbert", {"dim": 9, "n_heads": 2}, "n_heads"),
        ("transformers", "gpt2", GPT2, "no padding token; allowed: pad_token_id among the backbone's"),
        ("transformers", "perceiver", PERCEIVER, "PerceiverForS.* has no padding token"),
    ],
)  # fmt: skip
def test_invalid_networks_are_refused(
    tmp_path: Path, library: str, name: str, arguments: dict[str, Any], message: str
) -> None:
    folder = make_backbone(tmp_path, name, arguments, library=library)
    for method in (FILM, SCRATCH):
        with pytest.raises(BackboneError, match=message):
            build_model(folder, method, 10, seed=1)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (SCRATCH, "does not train from scratch; allowed: a backbone with weights: {kind: random}"),
        (lora("qkv", "query"), r"'query' matches no layer.*allowed: .*attn\.qkv"),
        (lora("qkv", "proj"), r"'proj' matches patch_embed\.proj.*allowed: .*attn\.qkv"),
        (lora("qkv", "norm1"), r"'norm1' matches blocks\.0\.norm1.*allowed: .*attn\.qkv"),
        (lora("head"), r"'head' matches head of .*outside the head.*attn\.qkv"),
        (lora("qkv", "head"), "'head' matches head of "),
    ],
)
def test_invalid_methods_are_refused(pretrained: Path, method: Method, message: str) -> None:
    with pytest.raises(BackboneError, match=message):
        build_model(pretrained, method, 10, seed=1)


def test_missing_or_changed_backbones_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "toy"
    with pytest.raises(BackboneError, match=r"metadata\.json is missing") as raised:
        build_model(folder, FILM, 10, seed=1)
    assert raised.value.remake == (folder / "metadata.json",)
    make_backbone(folder, arguments=VIT, pretrained=True)
    weights, metadata = folder / "model.safetensors", folder / "metadata.json"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(BackboneError, match="checksum"):
        build_model(folder, FILM, 10, seed=1)
    weights.write_bytes(content)
    metadata.write_text(metadata.read_text().replace('"num_heads": 2', '"num_heads": 4'))
    with pytest.raises(BackboneError, match="edited"):
        build_model(folder, FILM, 10, seed=1)


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    folder = make_backbone(tmp_path, arguments=VIT | {"depth": 3}, pretrained=True)
    stored = PreparedBackbone.open(folder)
    facts = stored.metadata.model_dump(exclude={"checksum"})
    facts["architecture"]["arguments"] = VIT
    write_backbone(folder, stored.state(), **facts)
    with pytest.raises(BackboneError, match=r"Unexpected.*blocks\.2"):
        build_model(folder, FILM, 10, seed=1)


# -- checksums, notes ----------------------------------------------------------------------------


def test_checksum_depends_only_on_the_network(tmp_path: Path) -> None:
    architecture = Architecture(library="timm", name="a", arguments={"depth": 2})
    known: dict[str, Any] = {
        **{"name": "toy", "title": "Toy", "mean": (0.5,), "std": (0.5,), "parameters": 1},
        **{"architecture": architecture, "state": {"weight": torch.zeros(2)}},
        "pretraining": {"kind": "file", "path": "a"},
    }

    def checksum(**changes: Any) -> str:
        return write_backbone(tmp_path, **(known | changes)).metadata.checksum

    same = {checksum(), checksum(title="Other", name="other")}
    same.add(checksum(pretraining={"kind": "file", "path": "b"}))
    different = (
        {"mean": (0.4,)},
        {"std": (0.4,)},
        {"state": {"weight": torch.ones(2)}},
        {"architecture": architecture.model_copy(update={"name": "b"})},
        {"architecture": architecture.model_copy(update={"arguments": {"depth": 3}})},
    )
    assert len(same) == 1
    assert len(same | {checksum(**changes) for changes in different}) == 6
