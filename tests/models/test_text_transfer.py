"""The demo's text backbone transfers from public docstrings to the private ones, without privacy."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.models.plain_training import accuracy_after_training

from dpsweep.data import PreparedDataset
from dpsweep.data.prepare import prepare as prepare_dataset
from dpsweep.data.tokenizer import prepare as prepare_tokenizer
from dpsweep.models.prepare import prepare as prepare_backbone
from dpsweep.study import load_study
from dpsweep.study.config import DocstringsSource, Film
from dpsweep.study.paths import Paths

DEMO = Path(__file__).parents[2] / "studies" / "demo.yaml"
STUDY = load_study(DEMO)
EPOCHS = 4
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
    data = PreparedDataset.open(paths.dataset("docstrings"))
    return accuracy_after_training(
        paths.backbone(backbone),
        STUDY.methods.get(method, Film(kind="film")),
        _tensors(data.train_inputs, data.train_labels),
        _tensors(data.test_inputs, data.test_labels),
        epochs=EPOCHS,
        learning_rate=learning_rate,
    )


def _tensors(tokens: np.ndarray, labels: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(np.array(tokens)).long(), torch.from_numpy(np.array(labels))


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
