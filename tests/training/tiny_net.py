"""A network of two layers and its data, for tests of the private step."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpsweep.gradients import make_engine
from dpsweep.study.clipping import Clipping, FlatClipping
from dpsweep.training.optimizer import PrivateOptimizer
from dpsweep.training.randomness import GaussianNoise, microbatches

N, WIDTH, CLASSES = 60, 5, 3
HEAD = frozenset({"head.weight", "head.bias"})


def data(examples: int = N, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(examples, WIDTH, generator=generator, dtype=torch.float64).to(dtype)
    return inputs, torch.randint(CLASSES, (examples,), generator=generator)


def split(
    indices: np.ndarray, physical_batch: int, examples: tuple[Tensor, Tensor] | None = None
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield the micro-batches of some rows of the data: inputs, labels and mask."""
    inputs, labels = examples or data()
    for padded, mask in microbatches(indices, physical_batch):
        rows = torch.from_numpy(padded)
        yield inputs[rows], labels[rows], torch.from_numpy(mask)


def net(dtype: torch.dtype = torch.float64) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        parts = {"norm": nn.LayerNorm(WIDTH), "head": nn.Linear(WIDTH, CLASSES)}
        return nn.Sequential(OrderedDict(parts)).to(dtype)


def flat(model: nn.Module) -> Tensor:
    return torch.cat([each.detach().flatten() for each in model.parameters()])


def private(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    clipping: Clipping | None = None,
    noise_multiplier: float = 0.0,
    batch_size: int = 8,
    noise: GaussianNoise | None = None,
    engine: str = "expanded",
) -> PrivateOptimizer:
    """Return a private optimizer of a network; by default plain SGD with a learning rate of 1."""
    return PrivateOptimizer(
        optimizer or torch.optim.SGD(model.parameters(), lr=1.0),
        make_engine(engine, model, HEAD),
        clipping or FlatClipping(0.5),
        noise_multiplier=noise_multiplier,
        expected_batch_size=batch_size,
        noise=noise or GaussianNoise("noise"),
    )
