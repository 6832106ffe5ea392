"""Collect the facts about a problem that are known before training, without a look at its data."""

import math
from collections.abc import Sequence

import torch

from dpsweep.config import Backbone, GroupNorm
from dpsweep.models.architectures import create, described_architecture, find_head
from dpsweep.recommend.rule import Situation
from dpsweep.study import Study


def situation_of(study: Study, sweep: str, epsilon: float, epochs: int) -> Situation:
    """Return the situation of what a sweep trains.

    Args:
        study: the study; nothing of it need be prepared.
        sweep: the name of a sweep.
        epsilon: of one training run.
        epochs: of one training run.

    Raises:
        BackboneError: the network cannot be built.
    """
    parts = study.sweeps[sweep]
    return Situation(
        train_size=study.datasets[parts.dataset].train_size,
        epsilon=epsilon,
        delta=study.privacy.delta,
        epochs=epochs,
        optimizer=study.optimizer(parts.problem.optimizer).identity(),
        gradient_norm=expected_gradient_norm(study, sweep),
        rounding=study.privacy.step_rounding,
    )


def expected_gradient_norm(study: Study, sweep: str) -> float:
    """Return the norm of an example's gradient before training, as the shape of the head has it.

    A head of zeros gives each of K classes the probability 1 / K, so its gradient is
    sqrt((1 - 1/K) (|x|^2 + 1)) for what it reads, x, and for its bias. Networks end in normalised
    features, whose length is the root of their number, or 1 where the study says so; embeddings
    without a transformation are taken for such features. What else
    trains has no gradient yet, because the head of zeros passes none on.

    Raises:
        BackboneError: the network cannot be built.
    """
    parts = study.sweeps[sweep]
    features = study.features(parts.problem.name)
    asked = features.transformation if features else None
    return _norm(study.backbones[parts.backbone], study.datasets[parts.dataset].classes, asked)


def _norm(backbone: Backbone, classes: int, transformation: str | GroupNorm | None = None) -> float:
    with torch.device("meta"):
        model = create(described_architecture(backbone), classes)
    layer = model.get_submodule(find_head(model).outputs[0])
    last = transformation or backbone.arguments.get("transformation")
    square = 1 if last == "unit-norm" else layer.weight.shape[1]  # type: ignore[index]
    return math.sqrt((1 - 1 / classes) * (square + 1))


def first_situations(
    backbone: Backbone,
    classes: int,
    train_size: int,
    delta: float,
    epsilons: Sequence[float],
    epochs: int,
) -> list[Situation]:
    """Return the situations of a first sweep of a dataset that no study has yet, one for each epsilon.

    Args:
        backbone: its section.
        classes: K.
        train_size: N.
        delta: of the guarantee.
        epsilons: of the sweep.
        epochs: of the sweep.

    Raises:
        BackboneError: the network cannot be built.
    """
    norm = _norm(backbone, classes)
    return [Situation(train_size, each, delta, epochs, "adam", norm) for each in epsilons]
