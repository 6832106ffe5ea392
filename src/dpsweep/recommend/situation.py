"""Collect the facts about a problem that are known before training, without a look at its data."""

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from dpsweep.models.architectures import create, described_architecture, find_head
from dpsweep.models.build import build_model
from dpsweep.models.preprocess import make_preprocess, random_inputs
from dpsweep.models.representation import Representation, represent
from dpsweep.recommend.references import read_references
from dpsweep.recommend.rule import Situation, recommend
from dpsweep.study import Study
from dpsweep.study.config import Backbone
from dpsweep.study.paths import Paths

_RANDOM_EXAMPLES = 8


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
        optimizer=parts.optimizer,
        gradient_norm=expected_gradient_norm(study, sweep),
        rounding=study.privacy.step_rounding,
    )


def expected_gradient_norm(study: Study, sweep: str) -> float:
    """Return the norm of an example's gradient before training, without a look at data.

    A head of zeros gives each of K classes the probability 1 / K, so its gradient is
    sqrt((1 - 1/K) (|x|^2 + 1)) for what it reads, x, and for its bias. What else trains has no
    gradient yet, because the head of zeros passes none on. The length of x is that for noise, where
    the backbone is prepared. Otherwise features are taken to be normalised: their length is the root
    of their number, or 1 where the study says so.

    Raises:
        BackboneError: the network cannot be built.
    """
    parts = study.sweeps[sweep]
    classes = study.datasets[parts.dataset].classes
    features = study.features(parts.problem.name)
    backbone = study.backbones[parts.backbone]
    if Paths(Path(study.results)).backbone(parts.backbone).exists():
        square = _square_on_noise(study, sweep)
    elif features is not None and features.transformation == "unit-norm":
        square = 1.0
    else:
        square = _width(backbone, classes)
    return _norm(square, classes)


def _norm(square: float, classes: int) -> float:
    return math.sqrt((1 - 1 / classes) * (square + 1))


def _width(backbone: Backbone, classes: int) -> float:
    """How many features a head reads."""
    with torch.device("meta"):
        model = create(described_architecture(backbone), classes)
    layer = model.get_submodule(find_head(model).outputs[0])
    return float(layer.weight.shape[1])  # type: ignore[index]


def _square_on_noise(study: Study, sweep: str) -> float:
    """The mean square of the length of what the head of a prepared network reads for noise."""
    parts = study.sweeps[sweep]
    dataset, backbone = study.datasets[parts.dataset], study.backbones[parts.backbone]
    folder = Paths(Path(study.results)).backbone(parts.backbone)
    model = build_model(folder, study.methods[parts.method], dataset.classes, seed=1).eval()
    inputs = make_preprocess(*backbone.normalisation)(random_inputs(dataset, _RANDOM_EXAMPLES))
    features = study.features(parts.problem.name)
    with torch.no_grad():
        if features is not None:
            read = represent(Representation(model, features), inputs)
        else:
            given = list[Tensor]()
            head = model.get_submodule(find_head(model).outputs[0])
            head.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
            model(inputs)
            (read,) = given
    return float(read.flatten(1).square().sum(dim=1).mean())


def first_grids(
    backbone: Backbone,
    classes: int,
    train_size: int,
    delta: float,
    epsilons: Sequence[float],
    epochs: int,
    batch_sizes: Sequence[int],
) -> tuple[list[float], list[float]]:
    """Return the C and the ends of the learning rates of a first sweep, from reference points.

    They span what `recommend` expects at these epsilons and batch sizes, and the scatter of the reference
    points, so that the best values lie inside.

    Args:
        backbone: its section.
        classes: K.
        train_size: N.
        delta: of the guarantee.
        epsilons: of the sweep.
        epochs: of the sweep.
        batch_sizes: of the sweep, as numbers.

    Raises:
        BackboneError: the network cannot be built.
    """
    norm = _norm(_width(backbone, classes), classes)
    found = [
        recommend(
            Situation(train_size, epsilon, delta, epochs, "adam", norm), read_references(), size
        )
        for epsilon in epsilons
        for size in batch_sizes
    ]
    bounds = [each for made in found for each in made.clipping_bound.grid]
    rates = [each for made in found for each in made.learning_rate.grid]
    middle = float(f"{math.sqrt(min(bounds) * max(bounds)):.2g}")
    return [min(bounds), middle, max(bounds)], [min(rates), max(rates)]
