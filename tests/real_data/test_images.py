"""Real images and published weights through the whole chain (`make real-data`)."""

from pathlib import Path

import pytest
import yaml
from tests.real_data.workflow import train

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
    overlay = {
        "extends": str(STUDY),
        "results": str(tmp_path / "results"),
        "datasets": {"cifar100-10pct": {"source": {"path": str(DATA)}}},
        "backbones": {"vit-tiny": {"weights": {"path": str(WEIGHTS / "model.safetensors")}}},
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
    # Training the head alone on the frozen features gets to 0.53.
    assert pretrained >= 0.55
    assert pretrained >= random + 0.40
