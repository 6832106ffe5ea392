"""Accuracies and loss of a model on some examples, against plain arithmetic."""

from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dpsweep.training.context import Examples, TrialContext
from dpsweep.training.physical import PhysicalBatch
from dpsweep.training.trial import evaluate

CLASSES = 4
LABELS = torch.tensor([0, 0, 0, 0, 1, 1, 3])


class Fixed(nn.Module):
    """Returns the logits that it is given as inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, logits: Tensor) -> Tensor:
        self.precision = torch.backends.cudnn.conv.fp32_precision  # type: ignore[attr-defined]
        return logits * self.weight


class Context:
    device = torch.device("cpu")
    classes = CLASSES

    def __init__(self, at_once: int) -> None:
        self.evaluated_at_once = PhysicalBatch(at_once)

    def batch(self, examples: Examples, rows: Tensor) -> tuple[Tensor, Tensor]:
        return examples.inputs[examples.rows[rows]], examples.labels[rows]


def measured(
    logits: Tensor, labels: Tensor = LABELS, weight: float = 1.0, at_once: int = 512
) -> dict[str, Any]:
    model = Fixed()
    nn.init.constant_(model.weight, weight)
    examples = Examples(logits, labels, torch.arange(len(labels)))
    return evaluate(model, cast(TrialContext, Context(at_once)), examples)


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
def test_every_example_counts_whatever_the_batch(size: int) -> None:
    logits = torch.randn(7, CLASSES, generator=torch.Generator().manual_seed(0))
    whole = measured(logits)
    found = measured(logits, at_once=size)
    assert found["accuracy"] == whole["accuracy"]
    assert found["loss"] == pytest.approx(whole["loss"], rel=1e-6)


def test_a_gpu_evaluates_in_float32() -> None:
    model, settings = Fixed(), torch.backends.cudnn.conv  # type: ignore[attr-defined]
    before = settings.fp32_precision
    settings.fp32_precision = "tf32"
    try:
        examples = Examples(saying(*LABELS.tolist()), LABELS, torch.arange(len(LABELS)))
        evaluate(model, cast(TrialContext, Context(512)), examples)
        assert model.precision == "ieee"
        assert settings.fp32_precision == "tf32"
    finally:
        settings.fp32_precision = before


def test_outputs_that_are_not_finite_are_wrong() -> None:
    logits = saying(0, 0, 0, 0, 1, 1, 3)
    logits[0, 2] = torch.nan
    logits[4, 1] = torch.inf
    found = measured(logits)
    assert found["accuracy"] == pytest.approx(5 / 7)
    assert found["diverged"]


def test_parameters_that_are_not_finite_are_divergence() -> None:
    assert measured(saying(0, 0, 0, 0, 1, 1, 3), weight=float("nan"))["diverged"]
