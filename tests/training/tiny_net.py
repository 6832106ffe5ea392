"""A network of two layers and its data, for tests of the private step."""

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

N, WIDTH, CLASSES = 60, 5, 3


def data(examples: int = N, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(examples, WIDTH, generator=generator, dtype=torch.float64).to(dtype)
    return inputs, torch.randint(CLASSES, (examples,), generator=generator)


def net(dtype: torch.dtype = torch.float64) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        parts = {"norm": nn.LayerNorm(WIDTH), "head": nn.Linear(WIDTH, CLASSES)}
        return nn.Sequential(OrderedDict(parts)).to(dtype)


def flat(model: nn.Module) -> Tensor:
    return torch.cat([each.detach().flatten() for each in model.parameters()])
