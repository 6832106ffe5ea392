"""Pretraining on the public data of the demo, and its texts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.models.networks import VIT

from dpsweep.data import PreparedDataset
from dpsweep.data.prepare import prepare
from dpsweep.models.prepare import pretrain
from dpsweep.models.preprocess import Normalise
from dpsweep.study import load_study
from dpsweep.study.backbones import Architecture, Pretraining
from dpsweep.study.datasets import Dataset, DocstringsSource

DEMO = Path(__file__).parents[2] / "studies" / "demo.yaml"
STUDY = load_study(DEMO)
SMALL = VIT | {"embed_dim": 16, "depth": 1}
NETWORK = Architecture(library="timm", name="vit_tiny_patch16_224", arguments=SMALL)
RECIPE = Pretraining(kind="pretrain", dataset="glyphs", epochs=1, batch_size=32, learning_rate=5e-3)


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    source = {"kind": "glyphs", "characters": "LOXT", "train_per_class": 100, "test_per_class": 50}
    sizes = {"image_size": 8, "classes": 4, "train_size": 400, "test_size": 200}
    section = Dataset.model_validate({"title": "Letters", "source": source} | sizes)
    return prepare("letters", section, tmp_path_factory.mktemp("letters"))


State = dict[str, torch.Tensor]


def run(letters: PreparedDataset, **changes: float) -> tuple[State, dict[str, Any]]:
    recipe = RECIPE.model_copy(update=changes)
    return pretrain(NETWORK, Normalise([0.3], [0.35]), recipe, letters)


def same(first: State, second: State) -> bool:
    return all(torch.equal(value, second[name]) for name, value in first.items())


def test_accuracy_is_of_the_test_set(letters: PreparedDataset) -> None:
    # A quarter of the test labels is wrong; a good network predicts the others.
    labels = np.array(letters.test_labels)
    labels[:50] = (labels[:50] + 1) % 4
    state, measured = run(replace(letters, test_labels=labels), epochs=6)
    assert 0.62 < measured["accuracy"] <= 0.77
    assert measured["examples"] == 400
    assert not any(name.startswith("head") for name in state)


def test_seed_determines_the_weights(letters: PreparedDataset) -> None:
    first, measured = run(letters)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    again, measured_again = run(letters)
    assert torch.equal(torch.get_rng_state(), before)
    assert same(first, again)
    assert measured == measured_again
    # With a tiny learning rate, the results are the initial weights.
    start, other = (
        run(letters, learning_rate=1e-20, seed=seed)[0]["blocks.0.attn.qkv.weight"]
        for seed in (0, 1)
    )
    assert not torch.allclose(start, other)
    assert not torch.allclose(start, first["blocks.0.attn.qkv.weight"])
    share, measured = run(letters, train_share=0.25)
    assert measured["examples"] == 100 and not same(share, first)


def packages(dataset: str) -> set[str]:
    source = STUDY.datasets[dataset].source
    assert isinstance(source, DocstringsSource)
    return {module.split(".")[0] for module in source.modules}


def test_private_and_public_texts_are_from_different_packages() -> None:
    assert not packages("docstrings") & packages("docstrings-public")
