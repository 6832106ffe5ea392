"""The demo's backbones truly transfer from rendered glyphs to real digits, without privacy."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from dpsweep.data import PreparedDataset
from dpsweep.data.prepare import prepare as prepare_dataset
from dpsweep.models.backbone import PreparedBackbone
from dpsweep.models.build import build_model, trainable_parameters
from dpsweep.models.prepare import prepare as prepare_backbone
from dpsweep.models.preprocess import make_preprocess
from dpsweep.study import Study, load_study
from dpsweep.study.paths import Paths

DEMO = Path(__file__).parents[2] / "studies" / "demo.yaml"
EPOCHS = 8
BATCH_SIZE = 64
LEARNING_RATES = (0.003, 0.01, 0.03)
SEEDS = (1, 2, 3)


def fine_tuned_accuracy(
    study: Study, paths: Paths, backbone: str, learning_rate: float, seed: int
) -> float:
    """Test accuracy after plain FiLM training with Adam: no clipping, no noise."""
    data = PreparedDataset.open(paths.dataset("digits"))
    folder = paths.backbone(backbone)
    metadata = PreparedBackbone.open(folder).metadata
    preprocess = make_preprocess(metadata.mean, metadata.std)
    train, test = (
        preprocess(torch.from_numpy(np.array(inputs)))
        for inputs in (data.train_inputs, data.test_inputs)
    )
    labels, test_labels = (
        torch.from_numpy(np.array(each)) for each in (data.train_labels, data.test_labels)
    )
    model = build_model(folder, study.methods["film"], len(data.metadata.classes), seed)
    optimizer = torch.optim.Adam(trainable_parameters(model).values(), lr=learning_rate)
    random = torch.Generator().manual_seed(seed)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(labels), generator=random).split(BATCH_SIZE):
            optimizer.zero_grad()
            F.cross_entropy(model(train[batch]), labels[batch]).backward()
            optimizer.step()
    with torch.inference_mode():
        return float((model(test).argmax(dim=1) == test_labels).float().mean())


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
