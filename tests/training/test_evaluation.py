"""Accuracies and loss of a model, compared with plain arithmetic."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dpsweep.training.context import Examples
from dpsweep.training.physical import PhysicalBatch
from dpsweep.training.trial import evaluate

CLASSES, NAN, INF = 4, float("nan"), float("inf")
LABELS = torch.tensor([0, 0, 0, 0, 1, 1, 3])


class Fixed(nn.Module):
    """A network that returns its inputs as logits, and records the precision of a GPU's convolutions."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))

    def forward(self, logits: Tensor) -> Tensor:
        self.precision = torch.backends.cudnn.conv.fp32_precision  # type: ignore[attr-defined]
        return logits * self.weight


def measured(logits: Tensor, weight: float = 1.0, at_once: int = 512) -> dict[str, Any]:
    def batch(examples: Examples, rows: Tensor) -> tuple[Tensor, Tensor]:
        return examples.inputs[examples.rows[rows]], examples.labels[rows]

    context: Any = SimpleNamespace(
        device=torch.device("cpu"),
        classes=CLASSES,
        evaluated_at_once=PhysicalBatch(at_once),
        batch=batch,
    )
    model = Fixed(weight)
    found = evaluate(model, context, Examples(logits, LABELS, torch.arange(len(LABELS))))
    assert model.precision == "ieee"
    return found


def saying(*classes: int) -> Tensor:
    return 5 * torch.eye(CLASSES)[list(classes)]


def test_accuracies() -> None:
    # Class 0: three of four, class 1: none of two, class 3: its one; class 2 has no example.
    found = measured(saying(0, 0, 0, 1, 0, 2, 3))
    assert found["accuracy"] == pytest.approx(4 / 7)
    assert found["macro_accuracy"] == pytest.approx((0.75 + 0 + 1) / 3)
    np.testing.assert_allclose(found["per_class_accuracy"], [0.75, 0, np.nan, 1])
    assert not found["diverged"]
    right, wrong = -np.log(np.exp(5) / (np.exp(5) + 3)), -np.log(1 / (np.exp(5) + 3))
    assert found["loss"] == pytest.approx((4 * right + 3 * wrong) / 7, rel=1e-6)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_the_batch_size_of_an_evaluation_does_not_matter(size):
    logits = torch.randn(7, CLASSES, generator=torch.Generator().manual_seed(0))
    whole, found = measured(logits), measured(logits, at_once=size)
    assert found["accuracy"] == whole["accuracy"]
    assert found["loss"] == pytest.approx(whole["loss"], rel=1e-6)


@pytest.mark.parametrize(
    ("places", "weight", "accuracy"),
    [({(0, 2): NAN, (4, 1): INF}, 1.0, 5 / 7), ({}, NAN, 0.0)],
    ids=["outputs", "parameters"],
)
def test_values_that_are_not_finite_count_as_wrong_and_diverged(places, weight, accuracy):
    logits = saying(*LABELS.tolist())
    for place, value in places.items():
        logits[place] = value
    found = measured(logits, weight)
    assert found["accuracy"] == pytest.approx(accuracy)
    assert found["diverged"]
