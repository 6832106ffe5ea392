"""The networks whose steps are measured, what trains in them, and their batches."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.common import REPOSITORY
from dpsweep.models.architecture import Architecture
from dpsweep.models.backbone import write_backbone
from dpsweep.models.build import build_model, head_parameter_names
from dpsweep.study import load_study
from dpsweep.study.config import HeadOnly, Method

CLASSES = 100


@dataclass(frozen=True)
class Row:
    """One measurement: backbone and method of config.yaml, and the size of a batch."""

    title: str
    backbone: str
    method: str
    cpu_batch: int
    gpu_batch: int
    tokens: int = 0
    """length of a text"""
    pixels: int = 224
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """of the network, beside those of config.yaml"""

    @property
    def name(self) -> str:
        """For a file."""
        return f"{self.backbone}_{self.method}"

    @property
    def compiles(self) -> bool:
        """Whether our step has anything to compile: few parameters train."""
        return self.method not in ("all", "scratch")


ROWS = [
    Row("ViT-Tiny, FiLM", "vit-tiny", "film", 32, 512),
    Row("ViT-Tiny, LoRA rank 1", "vit-tiny", "lora-r1", 32, 512),
    Row("ViT-Tiny, head", "vit-tiny", "head", 32, 512),
    Row("ViT-Tiny, all parameters", "vit-tiny", "all", 16, 256),
    Row("ViT-Base, FiLM", "vit-base", "film", 8, 256),
    Row("ViT-Base, LoRA rank 1", "vit-base", "lora-r1", 8, 256),
    Row("ViT-Base, all parameters", "vit-base", "all", 4, 64),
    Row("BiT ResNet-50, FiLM", "resnet50", "film", 8, 256),
    Row("BiT ResNet-50, all parameters", "resnet50", "all", 4, 64),
    Row("DistilBERT, LoRA rank 16", "distilbert", "lora-r16-text", 8, 128, tokens=256),
    Row("WRN-16-4 from scratch", "wrn-16-4", "scratch", 32, 512, pixels=32),
]
_TINY = {"img_size": 32, "depth": 2, "embed_dim": 64, "num_heads": 2}
REHEARSAL = [
    Row("tiny ViT, FiLM", "vit-tiny", "film", 4, 4, pixels=32, arguments=_TINY),
    Row("tiny ViT, all parameters", "vit-tiny", "all", 4, 4, pixels=32, arguments=_TINY),
]


def rows(rehearse: bool) -> list[Row]:
    """List the measurements, or the few that only show that everything runs."""
    return REHEARSAL if rehearse else ROWS


def make_model(row: Row, seed: int = 0) -> nn.Module:
    """Build the network as the product does, with random weights."""
    study = load_study(REPOSITORY / "config.yaml")
    section = study.backbones[row.backbone]
    methods: dict[str, Method] = {**study.methods, "head": HeadOnly(kind="head")}
    architecture = Architecture(
        library=section.library,
        name=section.architecture,
        arguments={**section.arguments, **row.arguments},
    )
    with tempfile.TemporaryDirectory() as folder:
        write_backbone(
            Path(folder),
            name=row.backbone,
            title=section.title,
            kind="text" if row.tokens else "image",
            architecture=architecture,
            mean=() if row.tokens else tuple(section.mean),
            std=() if row.tokens else tuple(section.std),
            pretraining={"kind": "random"},
            parameters=0,
            state={},
        )
        model = build_model(Path(folder), methods[row.method], CLASSES, seed)
    for name in head_parameter_names(model):
        nn.init.normal_(model.get_parameter(name), std=0.02)  # a zero head sends nothing back
    return model.eval()


def make_batch(row: Row, device: torch.device) -> tuple[Tensor, Tensor]:
    """Random inputs as the network reads them, and labels."""
    generator = torch.Generator().manual_seed(1)
    size = row.cpu_batch if device.type == "cpu" else row.gpu_batch
    if row.tokens:
        inputs = torch.randint(1000, 30000, (size, row.tokens), generator=generator)
    else:
        inputs = torch.randn(size, 3, row.pixels, row.pixels, generator=generator)
    labels = torch.randint(CLASSES, (size,), generator=generator)
    return inputs.to(device), labels.to(device)
