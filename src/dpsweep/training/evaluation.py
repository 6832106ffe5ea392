"""How good a model is on some examples."""

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from dpsweep.models.build import trainable_parameters
from dpsweep.training.context import Examples, TrialContext

_TEST_BATCH = 512


@torch.no_grad()
def evaluate(model: nn.Module, context: TrialContext, examples: Examples) -> dict[str, Any]:
    """Accuracy (all, macro, per class), mean loss and divergence of a model on some examples.

    Macro accuracy is the mean over classes that have an example; a class without one has
    per-class accuracy NaN. Outputs that are not finite count as wrong.
    """
    labels = examples.labels
    loss = torch.zeros((), dtype=torch.float64, device=context.device)
    correct = torch.zeros_like(labels, dtype=torch.bool)
    for rows in torch.split(torch.arange(len(labels)), _TEST_BATCH):
        outputs = model(context.batch(examples, rows)).float()
        chosen = rows.to(context.device)
        loss += functional.cross_entropy(outputs, labels[chosen], reduction="sum").double()
        finite = outputs.isfinite().all(dim=1)
        correct[chosen] = (outputs.argmax(dim=1) == labels[chosen]) & finite
    counts = torch.bincount(labels, minlength=context.classes).double()
    right = torch.bincount(labels[correct], minlength=context.classes).double()
    per_class = right / counts
    finite_parameters = all(
        bool(parameter.isfinite().all()) for parameter in trainable_parameters(model).values()
    )
    mean_loss = float(loss) / len(labels)
    return {
        "accuracy": float(correct.double().mean()),
        "macro_accuracy": float(per_class[counts > 0].mean()),
        "per_class_accuracy": per_class.tolist(),
        "loss": mean_loss,
        "diverged": not (finite_parameters and np.isfinite(mean_loss)),
    }
