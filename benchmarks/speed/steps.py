"""The compared optimizer steps: dpsweep, without privacy, and Opacus."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.common import REPOSITORY
from dpsweep.gradients import make_engine
from dpsweep.models.architectures import create, seeded
from dpsweep.models.build import apply_method, head_parameter_names, trainable_parameters
from dpsweep.study import load_study
from dpsweep.study.clipping import FlatClipping
from dpsweep.study.networks import Architecture, HeadOnly, Method
from dpsweep.training.optimizer import PrivateOptimizer
from dpsweep.training.randomness import GaussianNoise

CLASSES = 100
REFERENCE = "without privacy"
Step = Callable[[], object]


@dataclass(frozen=True)
class Row:
    """One measurement: backbone and method of config.yaml, and batch sizes."""

    title: str
    backbone: str
    method: str
    cpu_batch: int
    gpu_batch: int
    tokens: int = 0
    """length of a text"""
    pixels: int = 224
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """of the network, in addition to those of config.yaml"""

    @property
    def name(self) -> str:
        """Name for files."""
        return f"{self.backbone}_{self.method}"

    @property
    def compiles(self) -> bool:
        """Whether the step can be compiled: only if few parameters train."""
        return self.method not in ("all", "scratch")

    def batch_on(self, device: torch.device) -> int:
        """Return the number of examples in a batch."""
        return self.cpu_batch if device.type == "cpu" else self.gpu_batch

    def inputs(self, count: int) -> Tensor:
        """Return random inputs of the network."""
        generator = torch.Generator().manual_seed(1)
        if self.tokens:
            return torch.randint(1000, 30000, (count, self.tokens), generator=generator)
        return torch.randn(count, 3, self.pixels, self.pixels, generator=generator)

    def model(self) -> nn.Module:
        """Build the network as dpsweep does, with random weights; a zero head would give zero gradients."""
        study = load_study(REPOSITORY / "config.yaml")
        section = study.backbones[self.backbone]
        methods: dict[str, Method] = {**study.methods, "head": HeadOnly(kind="head")}
        architecture = Architecture(
            library=section.library,
            name=section.architecture,
            arguments={**section.arguments, **self.arguments},
        )
        with seeded(0):
            model = create(architecture, CLASSES)
            apply_method(model, methods[self.method])
            for name in sorted(head_parameter_names(model)):
                nn.init.normal_(model.get_parameter(name), std=0.02)
        return model.eval()


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
"""Small rows for a test run of the benchmark."""


@dataclass(frozen=True)
class Setting:
    """The device and precision of a measurement."""

    device: torch.device
    autocast: torch.dtype | None = None
    compiled: bool = False

    @property
    def name(self) -> str:
        """Name for the table: precision, and whether steps are compiled."""
        precision = "bfloat16" if self.autocast else "float32"
        return f"{precision}, compiled" if self.compiled else precision

    def context(self) -> Any:
        """Return the autocast context for forward passes outside dpsweep's engines."""
        return torch.autocast(self.device.type, self.autocast) if self.autocast else nullcontext()

    def prepared(self, row: Row) -> tuple[nn.Module, torch.optim.Optimizer, Tensor, Tensor]:
        """Return the network of a row, Adam as in trials, inputs and labels."""
        model, count = row.model().to(self.device), row.batch_on(self.device)
        adam = torch.optim.Adam(trainable_parameters(model).values(), lr=1e-6, fused=True)
        labels = torch.arange(count, device=self.device) % CLASSES
        return model, adam, row.inputs(count).to(self.device), labels


def _trained(
    forward: Callable[[Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
    setting: Setting,
    batch: tuple[Tensor, Tensor],
    criterion: Any = F.cross_entropy,
) -> Step:
    """Return an ordinary step of torch."""
    inputs, labels = batch

    def step() -> None:
        with setting.context():
            loss = criterion(forward(inputs).float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()  # frees memory for the other contenders

    return step


def without_privacy(row: Row, setting: Setting) -> Step:
    """Return the step of plain training."""
    model, optimizer, *batch = setting.prepared(row)
    forward: Any = torch.compile(model) if setting.compiled else model
    return _trained(forward, optimizer, setting, (batch[0], batch[1]))


def dpsweep(row: Row, setting: Setting, rows_per_unit: int = 1) -> Step:
    """Return the private step of dpsweep, on units of so many rows."""
    model, adam, inputs, labels = setting.prepared(row)
    head = head_parameter_names(model)
    precision = {"autocast": setting.autocast, "compile": setting.compiled}
    optimizer = PrivateOptimizer(
        adam,
        make_engine("auto", model, head, **precision),  # type: ignore[arg-type]
        FlatClipping(1.0),
        noise_multiplier=1.0,
        expected_batch_size=len(labels),
        noise=GaussianNoise("benchmark", secret=b""),
    )
    mask = torch.ones_like(labels, dtype=torch.bool)
    if rows_per_unit == 1:
        return lambda: optimizer.step([(inputs, labels, mask)])
    units = np.arange(len(labels)) // rows_per_unit
    return lambda: optimizer.step([(inputs, labels, mask, units)])


def opacus(mode: str, row: Row, setting: Setting) -> Step:
    """Return the private step of Opacus, as its users call it."""
    from opacus import PrivacyEngine  # noqa: PLC0415
    from torch.utils.data import DataLoader, TensorDataset  # noqa: PLC0415

    model, adam, inputs, labels = setting.prepared(row)
    for module in model.train().modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    made = PrivacyEngine().make_private(
        module=model,
        optimizer=adam,
        criterion=nn.CrossEntropyLoss(),
        data_loader=DataLoader(TensorDataset(labels.cpu()), batch_size=len(labels)),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson_sampling=False,
        grad_sample_mode=mode,
    )
    criterion: Any = made[2] if mode == "ghost" else nn.CrossEntropyLoss()
    return _trained(made[0], made[1], setting, (inputs, labels), criterion)


CONTENDERS: dict[str, Callable[[Row, Setting], Step]] = {
    REFERENCE: without_privacy,
    "dpsweep": dpsweep,
    "Opacus, hooks": partial(opacus, "hooks"),
    "Opacus, ghost": partial(opacus, "ghost"),
}
