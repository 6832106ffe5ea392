"""Random images, networks with random weights, and trials of them: no accuracy comes out of these."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpsweep.data import Split, write_prepared
from dpsweep.data.prepared import PreparedDataset
from dpsweep.models.architecture import Architecture
from dpsweep.models.backbone import PreparedBackbone, write_backbone
from dpsweep.study.clipping import FlatClipping
from dpsweep.training.specification import TrialSpec

PROBLEM = "synthetic_vit_method"
"""Of `small_study`."""
_BLOCK = 1000


def write_images(folder: Path, size: dict[str, int]) -> PreparedDataset:
    """Write a dataset of random images.

    Args:
        folder: where it goes.
        size: ``train`` and ``test`` (examples), ``pixels`` and ``classes``.
    """
    return write_prepared(
        folder,
        name="synthetic",
        title="Synthetic",
        source="random",
        revision=None,
        classes=[str(each) for each in range(size["classes"])],
        train=_images(size, size["train"], 0),
        test=_images(size, size["test"], 1),
    )


def _images(size: dict[str, int], count: int, seed: int) -> Split:
    """Random images and labels, block by block."""
    random = np.random.default_rng(seed)
    labels = random.integers(size["classes"], size=count)
    # Each class occurs, so that it has an accuracy.
    labels[: size["classes"]] = np.arange(size["classes"])
    shape = (size["pixels"], size["pixels"], 3)

    def blocks() -> Iterator[np.ndarray[Any, Any]]:
        for start in range(0, count, _BLOCK):
            rows = min(_BLOCK, count - start)
            yield np.frombuffer(random.bytes(rows * int(np.prod(shape))), np.uint8).reshape(
                rows, *shape
            )

    return Split(blocks(), labels)


def write_vit(folder: Path, arguments: dict[str, int]) -> PreparedBackbone:
    """Write a ViT-Tiny whose weights are random, with some arguments of its own."""
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


def small_study(
    size: dict[str, int], arguments: dict[str, int], method: dict[str, Any], **sweep: Any
) -> dict[str, Any]:
    """A study of random images and a ViT-Tiny with random weights, as in YAML: one problem, `PROBLEM`.

    Args:
        size: see `write_images`.
        arguments: of the network.
        method: which parameters train.
        sweep: values of its axes, of which each has a single one by default.
    """
    return {
        "title": "Benchmark",
        "datasets": {
            "synthetic": {
                "title": "Synthetic",
                "source": {"kind": "hub", "id": "benchmark/synthetic"},
                "image_size": size["pixels"],
                "classes": size["classes"],
                "train_size": size["train"],
                "test_size": size["test"],
            }
        },
        "backbones": {
            "vit": {
                "title": "ViT-Tiny",
                "architecture": "vit_tiny_patch16_224",
                "arguments": arguments,
                "weights": {"kind": "random"},
            }
        },
        "methods": {"method": method},
        "sweeps": {
            "cells": {
                "dataset": "synthetic",
                "backbone": "vit",
                "method": "method",
                "epsilon": [8.0],
                "epochs": [1],
                "batch_size": ["full"],
                "clipping_bound": [1.0],
                "learning_rate": [0.001],
                "seeds": 1,
                **sweep,
            }
        },
    }


def stage(study_file: Path, *command: str) -> None:
    """Run a command of dpsweep in a process of its own."""
    call = [sys.executable, "-m", "dpsweep.cli", *command, "--study", str(study_file)]
    subprocess.run(call, check=True)


def film_trial(
    data: PreparedDataset, backbone: PreparedBackbone, device: torch.device, **fields: Any
) -> TrialSpec:
    """A trial of FiLM with DP-Adam at C = 1; ``fields`` are those that it must still have."""
    return TrialSpec(
        data=data.metadata.checksum,
        classes="",
        backbone=backbone.metadata.checksum,
        method={"kind": "film"},
        optimizer="adam",
        clipping=FlatClipping(1.0),
        seed=1,
        engine="auto",
        threads=1,
        device=device.type,
        **fields,
    )
