"""A cut of the study of frozen features, on real images and texts (`make real-data`)."""

import json
from pathlib import Path

import pytest
import yaml
from tests.real_data.workflow import train

ROOT = Path(__file__).parents[2]
STUDY = ROOT / "studies" / "frozen-features-local.yaml"
SHARED = ROOT.parent / "shared"

pytestmark = [
    pytest.mark.real_data,
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(
            (SHARED / each).is_dir() for each in ("data/cifar100", "data/20_newsgroups", "weights")
        ),
        reason=f"needs data and weights in {SHARED}",
    ),
]


def overlay(results: Path) -> str:
    """The study with two cells of its own, and with absolute paths."""
    weights = SHARED / "weights"
    encoder = weights / "all-MiniLM-L6-v2"
    vit = weights / "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    images = {"path": str(SHARED / "data" / "cifar100"), "test_share": 0.1}
    texts = {"path": str(SHARED / "data" / "20_newsgroups")}
    content = {
        "extends": str(STUDY),
        "results": str(results),
        "datasets": {
            "cifar100-10pct": {"source": images, "test_size": 1000},
            "20newsgroups": {"source": texts, "max_length": 32},
        },
        "backbones": {
            "vit-tiny": {"weights": {"path": str(vit / "model.safetensors")}},
            "minilm": {
                "weights": {"path": str(encoder / "model.safetensors")},
                "tokenizer": {"path": str(encoder / "tokenizer.json")},
            },
        },
    }
    grid = {"method": "head", "epsilon": [8.0], "epochs": [8], "batch_size": [1024], "seeds": 2}
    on_images = {"dataset": "cifar100-10pct", "backbone": "vit-tiny", "clipping_bound": [8.0]}
    on_texts = {"dataset": "20newsgroups", "backbone": "minilm", "clipping_bound": [1.0]}
    sweeps = {
        "images": grid | on_images | {"learning_rate": [0.016]},
        "texts": grid | on_texts | {"learning_rate": [0.064]},
    }
    # What the study trains and draws is replaced, not extended.
    replaced = {"sweeps": sweeps, "roles": {}, "figures": {}, "tables": {}}
    lines = [f"{key}: !replace {json.dumps(value)}" for key, value in replaced.items()]
    return yaml.safe_dump(content) + "\n".join(lines) + "\n"


def test_features_of_real_images_and_texts_are_worth_training_on(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(overlay(tmp_path / "results"))
    accuracy = train(file).groupby("dataset")["accuracy"].mean()
    print(accuracy.to_string())  # noqa: T201 (what the check has measured)
    # Guessing gives 0.01 and 0.05.
    assert accuracy["cifar100-10pct"] >= 0.25
    assert accuracy["20newsgroups"] >= 0.4
