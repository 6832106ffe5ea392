"""How good a model is on some examples."""

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from dpsweep.models.build import trainable_parameters
from dpsweep.training.context import Examples, TrialContext
from dpsweep.training.precision import full_precision


def _outputs(
    model: nn.Module, context: TrialContext, examples: Examples, first: int, count: int
) -> tuple[Tensor, Tensor]:
    """What a model gives for some examples, and their labels."""
    rows = torch.arange(first, min(first + count, len(examples.labels)))
    inputs, labels = context.batch(examples, rows)
    return model(inputs).float(), labels


@torch.no_grad()
@full_precision()
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
        outputs, wanted = context.evaluated_at_once.fit(
            partial(_outputs, model, context, examples, done)
        )
        loss += functional.cross_entropy(outputs, wanted, reduction="sum").double()
        finite = outputs.isfinite().all(dim=1)
        correct[done : done + len(wanted)] = (outputs.argmax(dim=1) == wanted) & finite
        done += len(wanted)
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
