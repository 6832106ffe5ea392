"""Small versions of networks of timm and transformers, with random weights and every method."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from dpsweep.models.architectures import create, seeded
from dpsweep.models.build import apply_method, head_parameter_names
from dpsweep.study.networks import AllParameters, Architecture, Film, HeadOnly, LoRA, Method

CLASSES, EXAMPLES, LENGTH = 10, 3, 12
METHODS = ("film", "lora", "all", "head")


def method(name: str, targets: list[str]) -> Method:
    """Return one of the four methods, with targets for LoRA."""
    match name:
        case "film":
            return Film(kind="film")
        case "lora":
            return LoRA(kind="lora", rank=2, target_modules=targets)
        case "all":
            return AllParameters(kind="all")
    return HeadOnly(kind="head")


@dataclass(frozen=True)
class Network:
    """A small version of a library's network; networks.yaml describes the fields."""

    library: str
    name: str
    targets: list[str] = field(default_factory=lambda: ["attn.qkv"])
    size: int = 32
    small: dict[str, Any] = field(default_factory=dict)

    def build(self) -> nn.Module:
        """Build the network with random weights, and with statistics similar to those of public weights."""
        # Without validation, because some arguments are tuples, which a study does not allow.
        architecture = Architecture.model_construct(
            library=self.library, name=self.name, arguments=self.small
        )
        with seeded(0):
            model = create(architecture, CLASSES).eval()
            for module in model.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    nn.init.normal_(module.running_mean, std=0.3)
                    nn.init.uniform_(module.running_var, 0.5, 1.5)
        return model

    def inputs(self) -> Tensor:
        """Return random images, or texts of different lengths."""
        generator = torch.Generator().manual_seed(0)
        if self.library == "timm":
            return torch.randn(EXAMPLES, 3, self.size, self.size, generator=generator)
        texts = torch.randint(5, 30, (EXAMPLES, LENGTH), generator=generator)
        ends = LENGTH - torch.arange(EXAMPLES)
        return texts.masked_fill(torch.arange(LENGTH) >= ends[:, None], -1)


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tuples(each) for key, each in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


NETWORKS = [
    Network(library, name, **(fields | {"small": _tuples(fields.get("small", {}))}))
    for library, found in yaml.safe_load(
        Path(__file__).with_name("networks.yaml").read_text()
    ).items()
    for name, fields in found.items()
]


def built(network: Network, name: str) -> tuple[nn.Module, Tensor]:
    """Return a network with the trainable parameters of a method, all of them nonzero, and inputs.

    Raises:
        BackboneError: the method finds nothing to train.
    """
    model = network.build()
    with seeded(1), torch.no_grad():
        apply_method(model, method(name, network.targets))
        for key in sorted(head_parameter_names(model)):
            nn.init.normal_(model.get_parameter(key), std=0.02)
        for parameter in model.parameters():
            if parameter.requires_grad:  # layer scales and adapters start near zero
                parameter.add_(0.02 * torch.randn(parameter.shape))
    return model, network.inputs()


def networks() -> Iterator[tuple[str, Any]]:
    """Yield every network with every method."""
    for network in NETWORKS:
        for name in METHODS:
            yield f"{network.name} {name}", partial(built, network, name)
