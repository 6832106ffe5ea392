"""Layers in many settings, and adapters of peft, each in a small network with everything that trains."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import timm
import timm.layers
import torch
import yaml
from torch import Tensor, nn
from torch.nn.utils import parametrizations

CLASSES, EXAMPLES = 3, 4
W, T = 8, 5
INPUTS = {
    "vectors": (W,),
    "tokens": (T, W),
    "many tokens": (64, W),
    "frames": (2, T, W),
    "sequences": (W, T),
    "images": (W, 6, 6),
    "volumes": (W, 4, 4, 4),
}
DIMENSIONAL = ("sequences", "images", "volumes")
Build = Callable[[list[str]], tuple[nn.Module, Tensor]]


class _Net(nn.Module):
    """A layer between a linear one and a head, so that gradients flow through it and from it."""

    def __init__(self, layer: nn.Module, inputs: Tensor, first: bool) -> None:
        super().__init__()
        self.first = nn.Linear(inputs.shape[-1], inputs.shape[-1]) if first else nn.Identity()
        self.layer = layer
        with torch.no_grad():
            outputs = _tensor(layer(self.first(inputs)))
        self.head = nn.Linear(outputs.flatten(1).shape[1], CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(_tensor(self.layer(self.first(x))).flatten(1))
        return logits


def _tensor(outputs: Any) -> Tensor:
    while isinstance(outputs, tuple | list):
        outputs = outputs[0]
    assert isinstance(outputs, Tensor)
    return outputs


class Itself(nn.Module):
    """Attention of tokens among themselves."""

    def __init__(self, attention: nn.Module, arguments: int = 3) -> None:
        super().__init__()
        self.attention, self.arguments = attention, arguments

    def forward(self, x: Tensor) -> Tensor:
        """Give every argument the same tokens."""
        return _tensor(self.attention(*[x] * self.arguments))


class Twice(nn.Sequential):
    """A layer at two places."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__(layer, nn.Tanh(), layer)


class Tied(nn.Sequential):
    """One weight in two layers."""

    def __init__(self, one: nn.Module, two: nn.Module) -> None:
        super().__init__(one, nn.Tanh(), two)
        two.weight = one.weight


class Own(nn.Module):
    """A parameter of somebody's own."""

    def __init__(self, shape: tuple[int, ...], function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.rand(shape) + 0.5), function

    def forward(self, x: Tensor) -> Tensor:
        """Compute the function of the inputs and the parameter."""
        return self.function(x, self.weight)


class Mean(nn.Module):
    """A mean over dimensions."""

    def __init__(self, *dimensions: int) -> None:
        super().__init__()
        self.dimensions = dimensions

    def forward(self, x: Tensor) -> Tensor:
        """Average."""
        return x.mean(self.dimensions)


def named(**layers: nn.Module) -> nn.Module:
    """Layers one after the other, by their names."""
    return nn.Sequential(OrderedDict(layers))


def _made(code: str) -> nn.Module:
    """A layer written as Python in layers.yaml or adapters.yaml."""
    names = globals() | {"tl": timm.layers, "parametrizations": parametrizations}
    layer = eval(code, names)  # noqa: S307 (code of this repository)
    assert isinstance(layer, nn.Module)
    return layer


def _listed(name: str) -> Any:
    return yaml.safe_load(Path(__file__).with_name(name).read_text())


def _built(layer: nn.Module, kind: str, first: bool = True) -> tuple[nn.Module, Tensor]:
    """The network of a layer with no parameter or statistics at 0 or 1, which would hide an error."""
    numbers = kind == "numbers"
    inputs = torch.randint(12, (EXAMPLES, T)) if numbers else torch.randn(EXAMPLES, *INPUTS[kind])
    model = _Net(layer.eval(), inputs, first and not numbers).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn(parameter.shape))
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats:
                nn.init.normal_(module.running_mean, std=0.3)
                nn.init.uniform_(module.running_var, 0.5, 1.5)
    return model, inputs


def layers() -> Iterator[tuple[str, Build]]:
    """Layers of torch and timm by name, each with what builds its network and inputs."""

    def case(code: str, kind: str) -> tuple[str, Build]:
        return f"{code} of {kind}", lambda _: _built(_made(code), kind)

    for kinds, codes in _listed("layers.yaml").items():
        for code in codes:
            if kinds in (*INPUTS, "numbers"):
                yield case(code, kinds)
            else:
                yield from (
                    case(code.replace("{d}", str(d + 1)), kind)
                    for d, kind in enumerate(DIMENSIONAL)
                )


def _adapted(
    settings: dict[str, Any], network: dict[str, Any], _: list[str]
) -> tuple[nn.Module, Tensor]:
    import peft  # noqa: PLC0415

    arguments = {"target_modules": network["targets"]} | settings
    configuration = getattr(peft, arguments.pop("kind"))(**arguments)
    body = peft.get_peft_model(_made(network["network"]), configuration)
    return _built(body, network["inputs"], first=False)


def adapters() -> Iterator[tuple[str, Build]]:
    """Methods of peft in small networks, as far as peft knows the layers."""
    found = _listed("adapters.yaml")
    for name, settings in found["methods"].items():
        for title, network in found["networks"].items():
            yield f"{name} in {title}", partial(_adapted, settings, network)
