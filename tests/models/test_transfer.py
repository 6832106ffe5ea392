"""The demo's backbones truly transfer from rendered glyphs to real digits, without privacy."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.models.plain_training import accuracy_after_training

from dpsweep.data import PreparedDataset
from dpsweep.data.prepare import prepare as prepare_dataset
from dpsweep.models.backbone import PreparedBackbone
from dpsweep.models.prepare import prepare as prepare_backbone
from dpsweep.models.preprocess import make_preprocess
from dpsweep.study import Study, load_study
from dpsweep.study.paths import Paths

DEMO = Path(__file__).parents[2] / "studies" / "demo.yaml"
EPOCHS = 8
LEARNING_RATES = (0.003, 0.01, 0.03)
SEEDS = (1, 2, 3)


def fine_tuned_accuracy(
    study: Study, paths: Paths, backbone: str, learning_rate: float, seed: int
) -> float:
    data = PreparedDataset.open(paths.dataset("digits"))
    folder = paths.backbone(backbone)
    metadata = PreparedBackbone.open(folder).metadata
    preprocess = make_preprocess(metadata.mean, metadata.std)
    train, test = (
        (preprocess(torch.from_numpy(np.array(inputs))), torch.from_numpy(np.array(labels)))
        for inputs, labels in (
            (data.train_inputs, data.train_labels),
            (data.test_inputs, data.test_labels),
        )
    )
    return accuracy_after_training(
        folder,
        study.methods["film"],
        train,
        test,
        epochs=EPOCHS,
        learning_rate=learning_rate,
        seed=seed,
    )


def tuned_accuracy(study: Study, paths: Paths, backbone: str) -> float:
    """Mean over the seeds, at the learning rate that is best for the first."""

    def run(rate: float, seed: int) -> float:
        return fine_tuned_accuracy(study, paths, backbone, rate, seed)

    best = max(LEARNING_RATES, key=lambda rate: run(rate, SEEDS[0]))
    return float(np.mean([run(best, seed) for seed in SEEDS]))


@pytest.mark.slow
def test_the_demos_backbones_transfer(tmp_path: Path) -> None:
    study, paths = load_study(DEMO), Paths(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for name in ("digits", "glyphs"):
            prepare_dataset(name, study.datasets[name], paths.dataset(name))
        for name in ("vit-strong", "vit-weak", "vit-random"):
            prepare_backbone(name, study.backbones[name], paths)
        strong, weak, random = (
            tuned_accuracy(study, paths, f"vit-{name}") for name in ("strong", "weak", "random")
        )
    finally:
        torch.set_num_threads(threads)
    assert strong >= 0.95
    assert weak >= 0.80
    assert weak < strong
    assert random <= weak - 0.10
