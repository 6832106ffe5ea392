"""Non-private pretraining of the demo's small networks on its public datasets."""

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpsweep.data import PreparedDataset
from dpsweep.models.architecture import Architecture, BackboneError
from dpsweep.models.architectures import create, seeded, state_without_head
from dpsweep.study.backbones import Pretraining

_WARM_UP = 0.1
"""Share of the steps in which the learning rate increases."""
_LABEL_SMOOTHING = 0.1
_TEST_BATCH = 1024


@dataclass(frozen=True)
class Pretrained:
    """Result of pretraining."""

    state: dict[str, Tensor]
    """Without the head."""
    accuracy: float
    """On the public test set, after the last epoch; a fraction."""
    examples: int
    """The number of training examples used (``train_share``)."""


def pretrain(
    architecture: Architecture,
    preprocess: nn.Module,
    recipe: Pretraining,
    dataset: PreparedDataset,
) -> Pretrained:
    """Train a network on a public dataset, on the CPU, without privacy.

    Use AdamW with a linear warm-up and a cosine decay to zero, and cross-entropy with label smoothing.
    The same arguments give the same weights on the same machine and number of threads.

    Args:
        architecture: of the network; its head has the classes of the dataset.
        preprocess: maps stored images to inputs of the network.
        recipe: epochs, learning rate, seed and other settings.
        dataset: images and labels, both splits.

    Raises:
        BackboneError: the training diverged.
    """
    random = np.random.default_rng(recipe.seed)
    labels = torch.from_numpy(np.array(dataset.train_labels))
    chosen = _stratified_share(labels, recipe.train_share, random)
    inputs = preprocess(torch.from_numpy(np.array(dataset.train_inputs)))[chosen]
    labels = labels[chosen]

    # Dropout, if any, uses the same random stream as the initial weights.
    with seeded(recipe.seed):
        model = create(architecture, len(dataset.metadata.classes))
        batches = math.ceil(len(labels) / recipe.batch_size)
        steps = recipe.epochs * batches
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, steps))
        model.train()
        for _ in range(recipe.epochs):
            order = torch.from_numpy(random.permutation(len(labels)))
            for start in range(0, len(order), recipe.batch_size):
                batch = order[start : start + recipe.batch_size]
                loss = F.cross_entropy(
                    model(inputs[batch]), labels[batch], label_smoothing=_LABEL_SMOOTHING
                )
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()
    if not math.isfinite(loss.item()):
        raise BackboneError(
            f"pretraining on {recipe.dataset} diverged (loss {loss.item()}); lower "
            f"weights.learning_rate, it is {recipe.learning_rate}"
        )
    accuracy = _accuracy(model, preprocess, dataset)
    return Pretrained(state_without_head(model), accuracy, examples=len(labels))


def _rate(step: int, steps: int) -> float:
    """Return the share of the full learning rate after ``step`` of ``steps`` steps."""
    warm_up = max(1, round(_WARM_UP * steps))
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up)))


def _stratified_share(labels: Tensor, share: float, random: np.random.Generator) -> Tensor:
    """Return indices of about ``share`` of each class, with at least one example of each."""
    chosen = []
    for label in range(int(labels.max()) + 1):
        members = np.flatnonzero(labels.numpy() == label)
        count = max(1, round(share * len(members)))
        chosen.append(random.permutation(members)[:count])
    return torch.from_numpy(np.sort(np.concatenate(chosen)))


@torch.inference_mode()
def _accuracy(model: nn.Module, preprocess: nn.Module, dataset: PreparedDataset) -> float:
    model.eval()
    correct = 0
    for start in range(0, len(dataset.test_labels), _TEST_BATCH):
        part = slice(start, start + _TEST_BATCH)
        logits = model(preprocess(torch.from_numpy(np.array(dataset.test_inputs[part]))))
        labels = torch.from_numpy(np.array(dataset.test_labels[part]))
        correct += int((logits.argmax(dim=1) == labels).sum())
    return correct / len(dataset.test_labels)
