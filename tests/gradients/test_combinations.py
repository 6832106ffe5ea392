"""All backbones and methods of the paper's study have the reference gradients.

The combinations are those of `config.yaml`, so a new one is tested or fails here. Networks are those of the
study with fewer and smaller layers, if they have arguments for it.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.gradients.reference import check
from tests.gradients.tiny_models import CLASSES, Case, set_statistics

from dpsweep.models.architectures import create, described_architecture, seeded
from dpsweep.models.build import apply_method, head_parameter_names
from dpsweep.models.sequence_classifier import SequenceClassifier
from dpsweep.study import load_study

STUDY = load_study(Path(__file__).parents[2] / "config.yaml")
SIZE, LENGTH = 32, 12
VIT = {"img_size": SIZE, "patch_size": 16, "embed_dim": 24, "num_heads": 2, "depth": 2}
SMALLER: dict[str, dict[str, Any]] = {
    "vit-tiny": VIT,
    "vit-base": VIT | {"depth": 3, "embed_dim": 48},
    "resnet50": {"channels": (128, 128, 256, 256), "stem_chs": 32},
    "wrn-16-4": {"depth": 10, "width": 1},
    "distilbert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32, "vocab_size": 30}
    | {"max_position_embeddings": LENGTH},
}
# Without the dataset, because images of all datasets have the same form in the network.
COMBINATIONS = sorted({(sweep.backbone, sweep.method) for sweep in STUDY.sweeps.values()})


@pytest.mark.slow
@pytest.mark.parametrize(("backbone", "method"), COMBINATIONS)
def test_gradients_equal_the_reference(backbone: str, method: str) -> None:
    architecture = described_architecture(STUDY.backbones[backbone])
    smaller = architecture.arguments | SMALLER[backbone]
    with seeded(0):
        model = create(architecture.model_copy(update={"arguments": smaller}), CLASSES)
        apply_method(model, STUDY.methods[method])
        set_statistics(model)
        for parameter in model.parameters():  # zeros would hide errors
            parameter.data += 0.02 * torch.randn_like(parameter)
        text = isinstance(model, SequenceClassifier)
        inputs = model.made_up(4, LENGTH) if text else torch.randn(4, 3, SIZE, SIZE).double()
    labels, mask = torch.arange(4) % CLASSES, torch.arange(4) < 3
    head = head_parameter_names(model)
    check(Case(model.double().eval(), head, inputs, labels, mask), tolerance=1e-8)


def test_every_combination_is_tested() -> None:
    assert {backbone for backbone, _ in COMBINATIONS} == set(SMALLER)
    assert len(COMBINATIONS) >= 12
