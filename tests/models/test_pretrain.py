from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dpsweep.data import PreparedDataset, Split, write_prepared
from dpsweep.data.prepare import prepare
from dpsweep.models.architecture import Architecture, BackboneError
from dpsweep.models.preprocess import Normalise
from dpsweep.models.pretrain import Pretrained, pretrain
from dpsweep.study.config import Dataset, Pretraining

NETWORK = Architecture(
    library="timm",
    name="vit_tiny_patch16_224",
    arguments={
        "img_size": 8,
        "patch_size": 4,
        "in_chans": 1,
        "embed_dim": 16,
        "depth": 1,
        "num_heads": 2,
    },
)
RECIPE = Pretraining(
    kind="pretrain", dataset="glyphs", epochs=20, batch_size=32, learning_rate=5e-3
)


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    section = Dataset.model_validate(
        {
            **{
                "title": "Letters",
                "image_size": 8,
                "classes": 4,
                "train_size": 800,
                "test_size": 200,
            },
            "source": {
                **{"kind": "glyphs", "characters": "LOXT"},
                **{"train_per_class": 200, "test_per_class": 50},
            },
        }
    )
    return prepare("letters", section, tmp_path_factory.mktemp("letters"))


def run(letters: PreparedDataset, **changes: float) -> Pretrained:
    recipe = RECIPE.model_copy(update=changes)
    return pretrain(NETWORK, Normalise([0.3], [0.35]), recipe, letters)


def same(first: Pretrained, second: Pretrained) -> bool:
    return all(torch.equal(value, second.state[name]) for name, value in first.state.items())


def test_it_learns(letters: PreparedDataset) -> None:
    result = run(letters)
    assert result.accuracy > 0.85
    assert result.examples == 800
    assert not any(name.startswith("head") for name in result.state)


def test_it_is_a_function_of_the_seed(letters: PreparedDataset) -> None:
    first = run(letters, epochs=1)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    again = run(letters, epochs=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert same(first, again)
    assert first.accuracy == again.accuracy
    assert not same(first, run(letters, epochs=1, seed=1))


def test_initial_weights_are_a_function_of_the_seed(letters: PreparedDataset) -> None:
    # With next to no learning rate, what comes out is what went in.
    first, again, other = (
        run(letters, epochs=1, learning_rate=1e-20, seed=seed).state["blocks.0.attn.qkv.weight"]
        for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)


def test_a_share_keeps_the_balance(letters: PreparedDataset) -> None:
    result = run(letters, epochs=1, train_share=0.25)
    assert result.examples == 200
    assert not same(result, run(letters, epochs=1))


def test_accuracy_is_of_the_test_set(letters: PreparedDataset) -> None:
    # With rotated test labels, a good network is always wrong.
    rotated = replace(letters, test_labels=(np.array(letters.test_labels) + 1) % 4)
    assert run(rotated).accuracy < 0.15


def test_divergence_is_an_error(letters: PreparedDataset) -> None:
    with pytest.raises(BackboneError, match="diverged"):
        run(letters, epochs=1, learning_rate=1e30)


def test_grey_and_colour(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    split = Split(random.integers(0, 256, (8, 8, 8, 3), dtype=np.uint8), np.arange(8) % 2)
    colour = write_prepared(
        tmp_path,
        name="noise",
        title="Noise",
        source="random",
        revision=None,
        classes=["a", "b"],
        train=split,
        test=split,
    )
    network = NETWORK.model_copy(update={"arguments": NETWORK.arguments | {"in_chans": 3}})
    result = pretrain(network, Normalise([0.5] * 3, [0.5] * 3), RECIPE, colour)
    assert result.state["patch_embed.proj.weight"].shape == (16, 3, 4, 4)
