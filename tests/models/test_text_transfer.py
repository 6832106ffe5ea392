"""The demo's text backbone transfers from public docstrings to the private ones, without privacy."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from dpsweep.data import PreparedDataset
from dpsweep.data.prepare import prepare as prepare_dataset
from dpsweep.data.tokenizer import prepare as prepare_tokenizer
from dpsweep.models.build import build_model, trainable_parameters
from dpsweep.models.prepare import prepare as prepare_backbone
from dpsweep.study import load_study
from dpsweep.study.config import DocstringsSource, Film
from dpsweep.study.paths import Paths

DEMO = Path(__file__).parents[2] / "studies" / "demo.yaml"
STUDY = load_study(DEMO)
EPOCHS = 4
BATCH_SIZE = 64
LEARNING_RATES = (0.004, 0.012)


def packages(dataset: str) -> set[str]:
    source = STUDY.datasets[dataset].source
    assert isinstance(source, DocstringsSource)
    return {module.split(".")[0] for module in source.modules}


def test_private_and_public_texts_are_of_other_packages() -> None:
    assert not packages("docstrings") & packages("docstrings-public")


@pytest.mark.parametrize("dataset", ["docstrings", "docstrings-public"])
def test_every_machine_has_the_texts(dataset: str) -> None:
    """The packages are pinned, or of the standard library."""
    from importlib.metadata import packages_distributions

    from packaging.utils import canonicalize_name

    pinned = {
        canonicalize_name(line.split("==")[0])
        for line in (DEMO.parents[1] / "requirements.lock").read_text().splitlines()
        if "==" in line
    }
    distributions = packages_distributions()
    for package in packages(dataset) - {"asyncio", "email"}:
        names = {canonicalize_name(name) for name in distributions[package]}
        assert names & pinned, package


def fine_tuned_accuracy(paths: Paths, backbone: str, method: str, learning_rate: float) -> float:
    """Test accuracy after plain training with Adam: no clipping, no noise."""
    data = PreparedDataset.open(paths.dataset("docstrings"))
    train, test = (
        torch.from_numpy(np.array(each)).long() for each in (data.train_inputs, data.test_inputs)
    )
    labels, test_labels = (
        torch.from_numpy(np.array(each)) for each in (data.train_labels, data.test_labels)
    )
    trained = STUDY.methods.get(method, Film(kind="film"))
    model = build_model(paths.backbone(backbone), trained, len(data.metadata.classes), 1).eval()
    optimizer = torch.optim.Adam(trainable_parameters(model).values(), lr=learning_rate)
    random = torch.Generator().manual_seed(1)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(labels), generator=random).split(BATCH_SIZE):
            optimizer.zero_grad()
            F.cross_entropy(model(train[batch]), labels[batch]).backward()
            optimizer.step()
    with torch.inference_mode():
        return float((model(test).argmax(dim=1) == test_labels).float().mean())


@pytest.mark.slow
def test_pretraining_on_public_texts_helps_on_private_ones(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for name in ("text", "text-random"):
            prepare_tokenizer(name, STUDY.backbones[name], STUDY.datasets, paths.tokenizer(name))
        for name in ("docstrings", "docstrings-public"):
            prepare_dataset(
                name, STUDY.datasets[name], paths.dataset(name), paths.tokenizer("text")
            )
        for name in ("text", "text-random"):
            prepare_backbone(name, STUDY.backbones[name], paths)
        accuracy = {
            (method, name): max(
                fine_tuned_accuracy(paths, name, method, rate) for rate in LEARNING_RATES
            )
            for method in ("lora-text", "film")
            for name in ("text", "text-random")
        }
    finally:
        torch.set_num_threads(threads)
    # Guessing gets 1/6.
    for method in ("lora-text", "film"):
        assert accuracy[method, "text"] >= 0.48, accuracy
        assert accuracy[method, "text"] >= accuracy[method, "text-random"] + 0.08, accuracy
