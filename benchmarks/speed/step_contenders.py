"""The optimizer steps that are compared: ours, the same without privacy, and those of Opacus."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.speed.step_rows import Row, make_batch, make_model
from dpsweep.gradients import make_engine
from dpsweep.models.build import head_parameter_names, trainable_parameters
from dpsweep.study.clipping import FlatClipping
from dpsweep.training.optimizer import PrivateOptimizer
from dpsweep.training.randomness import GaussianNoise

REFERENCE = "without privacy"
Step = Callable[[], object]


@dataclass(frozen=True)
class Setting:
    """Where and how a row is measured."""

    device: torch.device
    autocast: torch.dtype | None
    compiled: bool

    @property
    def name(self) -> str:
        """For the table: precision, and whether steps are compiled."""
        precision = "bfloat16" if self.autocast else "float32"
        return f"{precision}, compiled" if self.compiled else precision

    def context(self) -> Any:
        """Around a forward pass that is not ours."""
        return torch.autocast(self.device.type, self.autocast) if self.autocast else nullcontext()


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """Adam as trials use it."""
    return torch.optim.Adam(trainable_parameters(model).values(), lr=1e-6, fused=True)


def without_privacy(row: Row, setting: Setting) -> Step:
    """Plain training: what an ordinary step costs."""
    model = make_model(row).to(setting.device)
    inputs, labels = make_batch(row, setting.device)
    optimizer = optimizer_of(model)
    forward = torch.compile(model) if setting.compiled else model

    def step() -> None:
        with setting.context():
            loss = F.cross_entropy(forward(inputs).float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()  # here, so that nothing stays while others take their turns

    return step


def dpsweep(row: Row, setting: Setting) -> Step:
    """The private step of this project."""
    model = make_model(row).to(setting.device)
    inputs, labels = make_batch(row, setting.device)
    mask = torch.ones_like(labels, dtype=torch.bool)
    engine = make_engine(
        "auto",
        model,
        head_parameter_names(model),
        autocast=setting.autocast,
        compile=setting.compiled,
    )
    optimizer = PrivateOptimizer(
        optimizer_of(model),
        engine,
        FlatClipping(1.0),
        noise_multiplier=1.0,
        expected_batch_size=len(labels),
        noise=GaussianNoise("benchmark", secret=b""),
    )
    return lambda: optimizer.step([(inputs, labels, mask)])


def opacus(mode: str, row: Row, setting: Setting) -> Step:
    """The private step of Opacus, as its users call it."""
    from opacus import PrivacyEngine  # noqa: PLC0415
    from torch.utils.data import DataLoader, TensorDataset  # noqa: PLC0415

    model = make_model(row).to(setting.device).train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    inputs, labels = make_batch(row, setting.device)
    made = PrivacyEngine().make_private(
        module=model,
        optimizer=optimizer_of(model),
        criterion=nn.CrossEntropyLoss(),
        data_loader=DataLoader(TensorDataset(labels.cpu()), batch_size=len(labels)),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson_sampling=False,
        grad_sample_mode=mode,
    )
    model, optimizer = made[0], made[1]
    criterion: Any = made[2] if mode == "ghost" else nn.CrossEntropyLoss()

    def step() -> None:
        with setting.context():
            loss = criterion(model(inputs).float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


CONTENDERS: dict[str, Callable[[Row, Setting], Step]] = {
    REFERENCE: without_privacy,
    "dpsweep": dpsweep,
    "Opacus, hooks": partial(opacus, "hooks"),
    "Opacus, ghost": partial(opacus, "ghost"),
}
