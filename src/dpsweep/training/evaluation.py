"""How good a model is on some examples."""

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from dpsweep.models.build import trainable_parameters
from dpsweep.training.context import Examples, TrialContext


def _outputs(
    model: nn.Module, context: TrialContext, examples: Examples, first: int, count: int
) -> tuple[Tensor, Tensor]:
    """The numbers of some examples, and what a model gives for them."""
    rows = torch.arange(first, min(first + count, len(examples.labels)))
    return rows, model(context.batch(examples, rows)).float()


@torch.no_grad()
def evaluate(model: nn.Module, context: TrialContext, examples: Examples) -> dict[str, Any]:
    """Accuracy (all, macro, per class), mean loss and divergence of a model on some examples.

    Macro accuracy is the mean over classes that have an example; a class without one has
    per-class accuracy NaN. Outputs that are not finite count as wrong.
    """
    labels = examples.labels
    loss = torch.zeros((), dtype=torch.float64, device=context.device)
    correct = torch.zeros_like(labels, dtype=torch.bool)
    done = 0
    while done < len(labels):
        rows, outputs = context.evaluated_at_once.fit(
            partial(_outputs, model, context, examples, done)
        )
        done += len(rows)
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
