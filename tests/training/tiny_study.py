"""A study whose trials take a tenth of a second, for tests of the trainer itself."""

from pathlib import Path
from typing import Any

import torch

from dpsweep.data.prepare import prepare as prepare_dataset
from dpsweep.data.prepared import PreparedDataset
from dpsweep.models.backbone import PreparedBackbone
from dpsweep.models.prepare import prepare as prepare_backbone
from dpsweep.privacy import Calibration
from dpsweep.study import Cell, Study
from dpsweep.study.paths import Paths
from dpsweep.training.specification import TrialSpec, specify

N = 269


def tiny_sections(training: dict[str, Any], method: dict[str, Any]) -> dict[str, Any]:
    """A fifth of the digits, a transformer of one block, one sweep of one cell: as in YAML."""
    return {
        "title": "Tiny",
        "training": training,
        "datasets": {
            "digits": {
                "title": "Digits",
                "source": {"kind": "sklearn-digits", "test_share": 0.85},
                "image_size": 8,
                "classes": 10,
                "train_size": N,
                "test_size": 1528,
            }
        },
        "backbones": {
            "vit": {
                "title": "Transformer",
                "architecture": "vit_tiny_patch16_224",
                "arguments": {"img_size": 8, "patch_size": 4, "in_chans": 1, "embed_dim": 32}
                | {"depth": 1, "num_heads": 2},
                "weights": {"kind": "random"},
                "mean": [0.5],
                "std": [0.5],
            }
        },
        "methods": {"method": method},
        "sweeps": {
            "digits": {
                "dataset": "digits",
                "backbone": "vit",
                "method": "method",
                "epsilon": [8.0],
                "epochs": [1],
                "batch_size": ["full"],
                "clipping_bound": [1.0],
                "learning_rate": [0.003],
                "seeds": 1,
            }
        },
    }


def tiny_study(training: dict[str, Any], method: dict[str, Any]) -> Study:
    """Validate `tiny_sections`."""
    return Study.model_validate(tiny_sections(training, method))


def prepare(study: Study, folder: Path) -> tuple[Paths, PreparedDataset, PreparedBackbone]:
    """Prepare the study's dataset and backbone."""
    paths = Paths(folder)
    prepare_dataset("digits", study.datasets["digits"], paths.dataset("digits"))
    prepare_backbone("vit", study.backbones["vit"], paths)
    return (
        paths,
        PreparedDataset.open(paths.dataset("digits")),
        PreparedBackbone.open(paths.backbone("vit")),
    )


def specs_of(
    study: Study, cell: Cell, noise: Calibration, data: PreparedDataset, backbone: PreparedBackbone
) -> dict[tuple[float, int], TrialSpec]:
    """The trials of a cell on the CPU, by learning rate and seed."""
    grid, cpu = study.sweeps[study.sweep_of(cell)], torch.device("cpu")
    return {
        (rate, seed): specify(study, cell, noise, data, backbone, cpu, rate, seed)
        for rate in grid.learning_rates
        for seed in range(1, grid.seeds + 1)
    }
