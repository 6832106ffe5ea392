"""Facts about a problem that are known before training, from the study alone."""

import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from dpsweep.models.architectures import create, find_head
from dpsweep.models.backbone import PreparedBackbone
from dpsweep.models.build import build_model
from dpsweep.models.described import described_architecture
from dpsweep.models.hashed_ngrams import HashedNgrams
from dpsweep.models.representation import Representation
from dpsweep.models.sequence_classifier import SequenceClassifier
from dpsweep.recommend.rule import ProblemFacts
from dpsweep.study import Study
from dpsweep.study.backbones import Backbone, BackboneError, Features
from dpsweep.study.methods import HeadOnly
from dpsweep.study.paths import Paths

_MADE_UP = 16  # inputs

Source = Literal["exact", "measured on made-up inputs", "a guess"]


class GradientNorm(NamedTuple):
    """G, the norm of an example's gradient before training."""

    value: float
    source: Source


def facts_of_sweep(
    study: Study, sweep: str, epsilon: float, epochs: int, paths: Paths | None = None
) -> ProblemFacts:
    """Return the facts about the problem of a sweep.

    Args:
        study: the study; its data need not be prepared.
        sweep: the name of a sweep.
        epsilon: of one training run.
        epochs: of one training run.
        paths: of the study's backbones.

    Raises:
        BackboneError: the network cannot be built.
    """
    parts, norm = study.sweeps[sweep], expected_gradient_norm(study, sweep, paths)
    return ProblemFacts(
        train_size=study.datasets[parts.dataset].protected,
        epsilon=epsilon,
        delta=study.privacy.delta,
        epochs=epochs,
        optimizer=study.optimizer(parts.problem.optimizer).identity(),
        gradient_norm=norm.value,
        norm_source=norm.source,
        parameters=_head_parameters(
            study.backbones[parts.backbone], study.datasets[parts.dataset].classes
        ),
        rounding=study.privacy.step_rounding,
    )


def expected_gradient_norm(study: Study, sweep: str, paths: Paths | None = None) -> GradientNorm:
    """Return the norm of an example's gradient before training; no data are read.

    A head of zeros gives each of K classes the probability 1 / K. With input x and a bias, the norm of its
    gradient is sqrt((1 - 1/K) (|x|^2 + 1)). Other parameters have no gradient yet, because a head of zeros
    passes none on. So G follows from |x|:

    - exact: features that are normalised one by one have the root of their number as |x|, with
      ``unit-norm`` 1;
    - measured: the median of |x| over made-up inputs, if the backbone is prepared;
    - a guess: as if the network ended in normalised features.

    Args:
        study: the study.
        sweep: the name of a sweep.
        paths: of the study's backbones.

    Raises:
        BackboneError: the network cannot be built.
    """
    parts = study.sweeps[sweep]
    backbone, dataset = study.backbones[parts.backbone], study.datasets[parts.dataset]
    features = study.features(parts.problem.name)
    asked: object = features.transformation if features else None
    asked = asked or backbone.arguments.get("transformation")  # of embeddings
    if asked is None and paths is not None and dataset.kind != "embedding":
        with suppress(BackboneError):  # it is not prepared
            folder = PreparedBackbone.open(paths.backbone(parts.backbone)).folder
            length = measured_length(folder, features, dataset.input_shape)
            return GradientNorm(_norm(length**2, dataset.classes), "measured on made-up inputs")
    norm = _norm_of_shape(backbone, dataset.classes, asked)
    return GradientNorm(norm, "a guess" if asked is None else "exact")


@torch.no_grad()
def measured_length(folder: Path, features: Features | None, shape: Sequence[int]) -> float:
    """Return the median length of the inputs of a network's head, over made-up inputs.

    Images are noise with the mean and standard deviation that the network is used to; texts are random
    tokens.

    Args:
        folder: a prepared backbone.
        features: that the head reads; by default those of the network's own head.
        shape: of an input: (tokens,) of texts, (height, width, channels) of images.

    Raises:
        BackboneError: the backbone is not prepared.
    """
    network = build_model(folder, HeadOnly(kind="head"), classes=2, seed=1).eval()
    if isinstance(network, SequenceClassifier | HashedNgrams):
        inputs = network.made_up(_MADE_UP, shape[0])
    else:
        height, width, channels = shape
        random = torch.Generator().manual_seed(0)
        inputs = torch.randn(_MADE_UP, channels, height, width, generator=random)
    if features is not None:
        read: Tensor = Representation(network, features)(inputs)
    else:
        last: list[Tensor] = []
        head = network.get_submodule(find_head(network).outputs[0])
        head.register_forward_pre_hook(lambda _, given: last.append(given[0]))
        network(inputs)
        read = last[0]
    return float(read.flatten(1).norm(dim=1).median())


def _norm(square: float, classes: int) -> float:
    """Return G from the squared length of an input of the head."""
    return math.sqrt((1 - 1 / classes) * (square + 1))


def _norm_of_shape(backbone: Backbone, classes: int, transformation: object | None = None) -> float:
    """Return G of normalised features, whose length follows from their number."""
    if transformation == "unit-norm":
        return _norm(1, classes)
    return _norm(_head_parameters(backbone, classes) // classes - 1, classes)


def _head_parameters(backbone: Backbone, classes: int) -> int:
    """Return the number of parameters of a head on all features of a network, with a bias."""
    with torch.device("meta"):
        model = create(described_architecture(backbone), classes)
    layer = model.get_submodule(find_head(model).outputs[0])
    return classes * (int(layer.weight.shape[1]) + 1)  # type: ignore[index]


def facts_of_first_sweep(
    backbone: Backbone,
    classes: int,
    train_size: int,
    delta: float,
    epsilons: Sequence[float],
    epochs: int,
    normalised: bool,
) -> list[ProblemFacts]:
    """Return the facts for the first sweep of a new dataset, one for each epsilon.

    Args:
        backbone: its section of a study.
        classes: K.
        train_size: N.
        delta: of the guarantee.
        epsilons: of the sweep.
        epochs: of the sweep.
        normalised: whether a head trains on normalised features, so that G is exact.

    Raises:
        BackboneError: the network cannot be built.
    """
    parameters = _head_parameters(backbone, classes)
    source = "exact" if normalised else "a guess"
    norm = _norm_of_shape(backbone, classes)
    return [
        ProblemFacts(train_size, each, delta, epochs, "adam", norm, source, parameters)
        for each in epsilons
    ]
