"""Small networks, prepared backbones of them, and their parameter counts."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from dpsweep.models.architectures import create, seeded, state_without_head
from dpsweep.models.backbone import write_backbone
from dpsweep.models.build import head_parameter_names, trainable_parameters
from dpsweep.study.networks import AllParameters, Architecture, Film, HeadOnly, Scratch

FILM, HEAD = Film(kind="film"), HeadOnly(kind="head")
ALL, SCRATCH = AllParameters(kind="all"), Scratch(kind="scratch")

VIT: dict[str, Any] = {"img_size": 8, "patch_size": 4, "in_chans": 1}
VIT |= {"embed_dim": 32, "depth": 2, "num_heads": 2}
BERT: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
BERT |= {"intermediate_size": 16, "vocab_size": 12}
DISTILBERT: dict[str, Any] = {"dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 16}
DISTILBERT |= {"vocab_size": 12}
GPT2: dict[str, Any] = {"n_embd": 8, "n_head": 2, "n_layer": 2, "vocab_size": 12}
T5: dict[str, Any] = {"d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 2}
T5 |= {"vocab_size": 12, "pad_token_id": 0, "eos_token_id": 3}


def network(
    name: str,
    arguments: dict[str, Any],
    library: str = "transformers",
    classes: int = 3,
    device: str = "cpu",
) -> nn.Module:
    architecture = Architecture(library=library, name=name, arguments=arguments)
    with seeded(0), torch.device(device):
        return create(architecture, classes).eval()


def make_backbone(
    folder: Path,
    name: str = "vit_tiny_patch16_224",
    arguments: dict[str, Any] | None = None,
    pretrained: bool = False,
    **facts: Any,
) -> Path:
    """Write a backbone of timm, or of ``library`` in ``facts``."""
    library = facts.pop("library", "timm")
    architecture = Architecture(library=library, name=name, arguments=arguments or {})
    state = {}
    if pretrained:
        with seeded(1234):
            state = state_without_head(create(architecture, 5))
    known = {"name": "toy", "title": "Toy", "mean": (0.5,), "std": (0.5,), "parameters": 1}
    known |= {"pretraining": {"kind": "file" if pretrained else "random"}}
    write_backbone(folder, state, architecture=architecture, **(known | facts))
    return folder


def parameter_counts(model: nn.Module) -> tuple[int, int]:
    """Return the number of parameters of the head, and of all trainable ones including the head."""
    sizes = {name: value.numel() for name, value in trainable_parameters(model).items()}
    return sum(sizes[name] for name in head_parameter_names(model)), sum(sizes.values())
