"""Real images and published weights through the whole chain (`make real-data`)."""

from pathlib import Path

import pytest
import yaml
from tests.real_data.workflow import train

from dpsweep.study import load_study

ROOT = Path(__file__).parents[2]
STUDY = ROOT / "studies" / "real-data.yaml"
DATA = ROOT.parent / "shared" / "data" / "cifar100"
WEIGHTS = ROOT.parent / "shared" / "weights" / "vit_tiny_patch16_224.augreg_in21k_ft_in1k"

pytestmark = [
    pytest.mark.real_data,
    pytest.mark.slow,
    pytest.mark.skipif(
        not (DATA.is_dir() and WEIGHTS.is_dir()),
        reason=f"needs CIFAR-100 in {DATA} and ViT-Tiny in {WEIGHTS}",
    ),
]


def test_pretraining_is_what_makes_private_training_work(tmp_path: Path) -> None:
    # A quarter of the study's work: fewer pixels and half of its epochs.
    small = {"arguments": {"img_size": 96}}
    short = {"epochs": [2], "learning_rate": [0.016]}
    overlay = {
        "extends": str(STUDY),
        "results": str(tmp_path / "results"),
        "datasets": {"cifar100-10pct": {"image_size": 96, "source": {"path": str(DATA)}}},
        "backbones": {
            "vit-tiny": {"weights": {"path": str(WEIGHTS / "model.safetensors")}} | small,
            "vit-tiny-random": small,
        },
        "sweeps": dict.fromkeys(load_study(STUDY).sweeps, short),
    }
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump(overlay))
    trials = train(file).set_index("backbone")
    columns = ["accuracy", "steps", "noise_multiplier", "certified_epsilon", "wall_seconds"]
    print(trials[columns].to_string())  # noqa: T201 (what the check has measured)
    assert trials["certified_epsilon"].between(7.9, 8).all()
    # The same steps, noise and number of trained parameters; only the weights differ.
    assert (trials[["steps", "noise_multiplier", "trainable_parameters"]].nunique() == 1).all()
    pretrained, random = (trials.loc[name, "accuracy"] for name in ("vit-tiny", "vit-tiny-random"))
    assert pretrained >= 0.25
    assert pretrained >= random + 0.20
