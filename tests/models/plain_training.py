"""Ordinary training, for tests of how well pretraining transfers."""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from dpsweep.models.build import build_model, trainable_parameters
from dpsweep.study.config import Method

BATCH_SIZE = 64


def accuracy_after_training(
    backbone: Path,
    method: Method,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    *,
    epochs: int,
    learning_rate: float,
    seed: int = 1,
) -> float:
    """Train a prepared backbone with Adam, neither clipped nor noisy; return test accuracy.

    ``train`` and ``test`` are inputs and labels.
    """
    inputs, labels = train
    model = build_model(backbone, method, int(labels.max()) + 1, seed).eval()
    optimizer = torch.optim.Adam(trainable_parameters(model).values(), lr=learning_rate)
    random = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for batch in torch.randperm(len(labels), generator=random).split(BATCH_SIZE):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs[batch]), labels[batch]).backward()
            optimizer.step()
    with torch.inference_mode():
        return float((model(test[0]).argmax(dim=1) == test[1]).float().mean())
