"""Random images, networks with random weights, and their trials. Their accuracies have no meaning."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpsweep.data import Split, write_prepared
from dpsweep.data.prepared import PreparedDataset
from dpsweep.models.backbone import PreparedBackbone, write_backbone
from dpsweep.study.cells import optimizer_steps
from dpsweep.study.clipping import FlatClipping
from dpsweep.study.networks import Architecture
from dpsweep.training.trial import TrialSpec

_BLOCK = 1000


def write_images(folder: Path, size: dict[str, int]) -> PreparedDataset:
    """Write a dataset of random images.

    Args:
        folder: of the dataset.
        size: ``train`` and ``test`` (examples), ``pixels`` and ``classes``.
    """
    train, test = (_images(size, size[part], seed) for seed, part in enumerate(("train", "test")))
    classes = [str(each) for each in range(size["classes"])]
    about = {"name": "synthetic", "title": "Synthetic", "source": "random", "revision": None}
    return write_prepared(folder, **about, classes=classes, train=train, test=test)  # type: ignore[arg-type]


def _images(size: dict[str, int], count: int, seed: int) -> Split:
    """Return random images, in blocks, and labels; every class occurs, so it has an accuracy."""
    random, pixels = np.random.default_rng(seed), size["pixels"]
    labels = random.permutation(np.arange(count) % size["classes"])

    def blocks() -> Iterator[np.ndarray[Any, Any]]:
        for start in range(0, count, _BLOCK):
            shape = min(_BLOCK, count - start), pixels, pixels, 3
            yield random.integers(256, size=shape, dtype=np.uint8)

    return Split(blocks(), labels)


def write_vit(folder: Path, arguments: dict[str, int]) -> PreparedBackbone:
    """Write a ViT-Tiny with random weights and the given arguments."""
    return write_backbone(
        folder,
        state={},
        name="vit",
        title="ViT-Tiny",
        architecture=Architecture(library="timm", name="vit_tiny_patch16_224", arguments=arguments),
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
        pretraining={"kind": "random"},
        parameters=0,
    )


def film_trial(
    data: PreparedDataset,
    backbone: PreparedBackbone,
    device: torch.device,
    *,
    batch_size: int,
    epochs: int,
    learning_rate: float,
    **fields: Any,
) -> TrialSpec:
    """Return a trial of FiLM with DP-Adam, C = 1 and uncalibrated noise; ``fields`` are further fields."""
    size = data.metadata.train_size
    return TrialSpec(
        data=data.metadata.checksum,
        classes="",
        backbone=backbone.metadata.checksum,
        method={"kind": "film"},
        optimizer="adam",
        epsilon=8.0,
        delta=1e-5,
        noise_multiplier=1.0,
        train_size=size,
        batch_size=batch_size,
        epochs=epochs,
        steps=optimizer_steps(size, batch_size, epochs, "round"),
        clipping=FlatClipping(1.0),
        learning_rate=learning_rate,
        seed=1,
        engine="auto",
        threads=1,
        device=device.type,
        **fields,
    )
