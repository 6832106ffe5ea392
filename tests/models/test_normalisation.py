"""FiLM trains all normalisation layers, whatever the names of their classes."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.gradients.reference import check
from tests.gradients.tiny_models import Case
from tests.models.networks import BERT, FILM, T5
from tests.models.networks import network as standard_network
from timm.layers import RmsNorm2d
from timm.layers.grn import GlobalResponseNorm
from torch import Tensor, nn

from dpsweep.models.architectures import create
from dpsweep.models.build import (
    apply_method,
    head_parameter_names,
    normalises,
    notes_on_film,
    select,
    trainable_parameters,
)
from dpsweep.models.sequence_classifier import Outline, SequenceClassifier
from dpsweep.study.backbones import Architecture, BackboneError

WIDTH = 6
LLAMA = BERT | {"num_key_value_heads": 2, "head_dim": 4, "pad_token_id": 0}
OWN: dict[str, tuple[dict[str, Any], int, str]] = {
    "llama": (LLAMA, 3, "LlamaRMSNorm"),
    "qwen3": (LLAMA, 5, "Qwen3RMSNorm"),  # also of queries and keys
    "gemma": (LLAMA, 3, "GemmaRMSNorm"),  # scales by 1 + weight
    "t5": (T5, 7, "T5LayerNorm"),
    "deberta": (BERT, 3, "DebertaLayerNorm"),
}


def network(name: str, arguments: dict[str, Any]) -> SequenceClassifier:
    model = standard_network(name, arguments)
    random = torch.Generator().manual_seed(0)
    for parameter in model.parameters():  # ones would hide errors
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=random)
    assert isinstance(model, SequenceClassifier)
    return model


@pytest.mark.parametrize("name", OWN)
def test_film_trains_custom_normalisation_layers(name: str) -> None:
    """It trains all of them, with the reference gradients."""
    arguments, count, kind = OWN[name]
    model = network(name, arguments)
    with torch.device("meta"), Outline():  # an outline has the same layers
        outline = SequenceClassifier.create(name, arguments, 3)
        assert select(model, FILM) == select(outline, FILM)
    assert not notes_on_film(model)
    apply_method(model, FILM)
    layers = {n: each for n, each in model.named_modules() if type(each).__name__ == kind}
    own = {f"{n}.{name}" for n, each in layers.items() for name, _ in each.named_parameters()}
    assert (
        len(layers) == count
        and trainable_parameters(model).keys() - head_parameter_names(model) == own
    )
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
