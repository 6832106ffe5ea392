"""Facts about a problem that are known before training, from the study alone."""

import math
from collections.abc import Sequence

import torch

from dpsweep.config import Backbone, GroupNorm
from dpsweep.models.architectures import create, find_head
from dpsweep.models.described import described_architecture
from dpsweep.recommend.rule import ProblemFacts
from dpsweep.study import Study


def facts_of_sweep(study: Study, sweep: str, epsilon: float, epochs: int) -> ProblemFacts:
    """Return the facts about the problem of a sweep.

    Args:
        study: the study; its data need not be prepared.
        sweep: the name of a sweep.
        epsilon: of one training run.
        epochs: of one training run.

    Raises:
        BackboneError: the network cannot be built.
    """
    parts = study.sweeps[sweep]
    return ProblemFacts(
        train_size=study.datasets[parts.dataset].train_size,
        epsilon=epsilon,
        delta=study.privacy.delta,
        epochs=epochs,
        optimizer=study.optimizer(parts.problem.optimizer).identity(),
        gradient_norm=expected_gradient_norm(study, sweep),
        rounding=study.privacy.step_rounding,
    )


def expected_gradient_norm(study: Study, sweep: str) -> float:
    """Return the norm of an example's gradient before training, computed from the shape of the head.

    A head of zeros gives each of K classes the probability 1 / K. With input x and a bias, the norm of its
    gradient is sqrt((1 - 1/K) (|x|^2 + 1)). Networks end in normalised features: |x| is the root of their
    number, or 1 with the transformation ``unit-norm``. Embeddings without a transformation are treated as
    normalised. Other parameters have no gradient yet, because a head of zeros passes none on.

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


def facts_of_first_sweep(
    backbone: Backbone,
    classes: int,
    train_size: int,
    delta: float,
    epsilons: Sequence[float],
    epochs: int,
) -> list[ProblemFacts]:
    """Return the facts for the first sweep of a new dataset, one for each epsilon.

    Args:
        backbone: its section of a study.
        classes: K.
        train_size: N.
        delta: of the guarantee.
        epsilons: of the sweep.
        epochs: of the sweep.

    Raises:
        BackboneError: the network cannot be built.
    """
    norm = _norm(backbone, classes)
    return [ProblemFacts(train_size, each, delta, epochs, "adam", norm) for each in epsilons]
