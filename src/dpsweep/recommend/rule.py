"""Recommended hyperparameters: batch size, C and learning rate by formulas, printed as a section ``release``.

The unit of C is G, the norm of an example's gradient before training. Bounds below the norms clip every
gradient, and give nearly the same accuracy.

The unit of the learning rate r is 1 / (G sqrt(T)). Adam moves every parameter by about r in each step.
Where noise is larger than the gradients, T steps are a random walk of length r sqrt(T). The gradients of
a linear layer with input x have a norm of about |x|, so its logits walk by about r sqrt(T) G. This should
be about 1: shorter walks cannot separate the classes, longer ones hide them in noise. Where features are
normalised, G is known exactly, and 2 was the better number: what examples have in common separates no
classes, so less than G counts. docs/recommend.md says how the numbers were chosen and judged.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from dpsweep.base.errors import DpsweepError
from dpsweep.models.architectures import create, described_architecture, find_head
from dpsweep.models.backbone import PreparedBackbone
from dpsweep.models.build import build_model
from dpsweep.models.featurisers import HashedNgrams
from dpsweep.models.representation import Representation
from dpsweep.models.sequence_classifier import SequenceClassifier
from dpsweep.privacy import Sampling
from dpsweep.privacy.calibration import calibrate, noise_multiplier
from dpsweep.privacy.trade_off import attacks_on_training, in_words
from dpsweep.study import Paths, Study
from dpsweep.study.cells import BatchSize, number, optimizer_steps
from dpsweep.study.checks import disagreements
from dpsweep.study.load import documentation, yaml_line
from dpsweep.study.networks import Backbone, BackboneError, Features, HeadOnly
from dpsweep.study.optimizers import BY_DEFAULT, optimizer_of
from dpsweep.study.release import Release

SIGNAL = 0.05
"""How much few steps cost where the signal is above the noise (`best_batch_size`)."""
LEAST_STEPS = 20
"""Fewer optimizer steps train badly even with little noise (paper, figure 5)."""
WALK = {"exact": 2.0}
"""How far logits walk, by where G comes from; otherwise 1."""
BOUND = 0.15
"""C in units of G; below nearly all norms."""
SIZES, RATES = (1 / 4, 1.0, 4.0), (1 / 2, 1.0, 2.0)
"""The small grid, in units of the recommended batch size and of the learning rate for each size."""
_SMALLEST_BATCH = 32


class NoAdviceError(DpsweepError):
    """A setting that the formula does not cover."""


@dataclass(frozen=True)
class ProblemFacts:
    """Facts about a problem that are known before training; none is read from its data."""

    train_size: int
    """N, of rows or of units of several rows"""
    epsilon: float
    delta: float
    epochs: int
    optimizer: str | dict[str, Any]
    """its identity, as in a trial's key"""
    gradient_norm: float
    """G, of one example before training"""
    norm_source: str = "exact"
    """exact, measured on made-up inputs, or a guess"""
    parameters: int = 2000
    """trainable ones of the head"""
    rounding: str = "round"
    """how epochs become steps (``privacy.step_rounding``)"""

    def steps(self, size: int) -> int:
        """Return T for a batch size."""
        return optimizer_steps(self.train_size, size, self.epochs, self.rounding)


@dataclass(frozen=True)
class Recommendation:
    """Hyperparameters, and a small grid around them."""

    batch_size: int
    steps: int
    clipping_bound: float
    learning_rate: float
    small_grid: Mapping[int, list[float]]
    """learning rates to try for each batch size, all with the same clipping bound"""


def best_batch_size(noise: Callable[[int], float], sizes: Iterable[int], parameters: int) -> int:
    """Return the batch size with the best trade of noise against steps.

    >>> noise = {64: 30.0, 256: 15.1, 1024: 15.0}
    >>> best_batch_size(noise.__getitem__, noise, 2000)
    256
    >>> best_batch_size(noise.__getitem__, noise, 1_000_000)
    1024

    Noise is counted by its logarithm. Few steps cost the more, the larger the signal of a training is
    beside its noise: `SIGNAL` times B / (sigma sqrt(T) sqrt(d)), which is that ratio divided by T. A sum of
    gradients grows with B, and noise in d dimensions has a norm of about sqrt(d).

    Args:
        noise: returns sigma sqrt(T) for a batch size; it falls with the size. Called for large sizes first.
        sizes: to choose from.
        parameters: d, the number of trainable parameters.
    """
    best, least = 0, math.inf
    # Begin with the large sizes: calibration takes longest for small ones, with their many steps.
    for size in sorted(sizes, reverse=True):
        cumulative = noise(size)
        if math.log(cumulative) >= least:
            break  # smaller ones have more noise still
        cost = math.log(cumulative) + SIGNAL * size / (cumulative * math.sqrt(parameters))
        if cost < least:
            best, least = size, cost
    return best


def batch_size(facts: ProblemFacts) -> int:
    """Return the batch size for a problem: a power of two, or all examples.

    Raises:
        CalibrationError: no noise gives this epsilon and delta.
    """
    whole, size = facts.train_size, _SMALLEST_BATCH
    sizes = [whole]
    while size < whole:
        sizes.append(size)
        size *= 2

    def noise(size: int) -> float:
        """Return sigma sqrt(T)."""
        sampling = Sampling(whole, size, facts.steps(size))
        sigma = noise_multiplier(facts.epsilon, facts.delta, sampling)
        return math.sqrt(sampling.steps) * sigma

    enough = [size for size in sizes if facts.steps(size) >= LEAST_STEPS]
    return best_batch_size(noise, enough or [min(sizes)], facts.parameters)


def enough_epochs(train_size: int, usual: int) -> int:
    """Return the usual number of epochs, or more if the smallest batch size needs more for its steps.

    >>> enough_epochs(60, usual=8), enough_epochs(1000, usual=8)
    (11, 8)

    Args:
        train_size: N.
        usual: the number for all but very small N.
    """
    return max(usual, math.ceil(LEAST_STEPS * min(_SMALLEST_BATCH, train_size) / train_size))


def learning_rate(gradient_norm: float, steps: float) -> float:
    """Return the learning rate of Adam, 1 / (G sqrt(T)).

    >>> learning_rate(10.0, 100)
    0.01

    Args:
        gradient_norm: G, of one example before training.
        steps: T, or the sum of the squares of a schedule's factors.
    """
    return 1 / (gradient_norm * math.sqrt(steps))


def recommend(facts: ProblemFacts) -> Recommendation:
    """Recommend hyperparameters, and a small grid of batch sizes and learning rates.

    >>> made = recommend(ProblemFacts(5000, 2.0, 1e-5, 8, "adam", gradient_norm=5.0))
    >>> made.batch_size, made.steps, made.clipping_bound, f"{made.learning_rate:.2g}"
    (1024, 39, 0.75, '0.064')

    Args:
        facts: about the problem.

    Raises:
        CalibrationError: no noise gives this epsilon and delta.
        NoAdviceError: the formula does not cover the optimizer, or epsilon is infinite.
    """
    if facts.epsilon == math.inf:
        raise NoAdviceError(
            "epsilon: found inf; allowed: finite, because the formula is about noise "
            f"({documentation('recommend.md')})"
        )
    optimizer = optimizer_of(facts.optimizer)
    if not optimizer.normalised_steps:
        allowed = ", ".join(name for name, each in BY_DEFAULT.items() if each.normalised_steps)
        raise NoAdviceError(
            f"optimizer: found {optimizer.kind}; allowed: {allowed}, whose steps the formula for the "
            f"learning rate is about ({documentation('recommend.md')})"
        )

    def rate(steps: int) -> float:
        # With a schedule, the sum of the squares of its factors takes the place of T.
        squares = math.fsum(optimizer.factor(step, steps) ** 2 for step in range(1, steps + 1))
        return WALK.get(facts.norm_source, 1.0) * learning_rate(norm, squares)

    size, norm = batch_size(facts), facts.gradient_norm
    steps, whole = facts.steps(size), facts.train_size
    sizes = sorted({min(max(1, round(size * factor)), whole) for factor in SIZES})
    return Recommendation(
        batch_size=size,
        steps=steps,
        clipping_bound=BOUND * norm,
        learning_rate=rate(steps),
        small_grid={each: [factor * rate(facts.steps(each)) for factor in RATES] for each in sizes},
    )


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


# -- text ----------------------------------------------------------------------------------

GAINED = {
    1: "",
    4: "+4.3 (+1.7 to +8.9, 4 settings)",
    16: "+1.7 (−2.0 to +6.3, 10 settings)",
    64: "+0.2 (−2.7 to +2.9, 4 settings)",
}
"""Gain over a quarter of the epochs in the stored sweeps, in points, by epochs (docs/recommend.md)."""
_READ = "read: the study's file; no data"


def recommendation(
    study: Study, sweep: str, epsilon: float, epochs: int, paths: Paths | None = None
) -> Iterator[str]:
    """Yield the recommendation for a sweep's problem, line by line.

    If the study would be refused with the section ``release``, the lines give the reason instead.

    Args:
        study: the study; its dataset need not be prepared.
        sweep: the name of a sweep.
        epsilon: of one training run.
        epochs: of one training run.
        paths: of the study's backbones.

    Raises:
        BackboneError: the network cannot be built.
        CalibrationError: no noise gives this epsilon and delta.
        NoAdviceError: the formula does not cover the sweep's optimizer.
    """
    facts = facts_of_sweep(study, sweep, epsilon, epochs, paths)
    made = recommend(facts)
    dataset = study.datasets[study.sweeps[sweep].dataset]
    unit = dataset.protects if dataset.has_units else None
    if unit:
        yield f"unit             {unit}; N = {facts.train_size}"
    yield from _table(facts, made)
    yield ""
    noise = calibrate(epsilon, facts.delta, facts.train_size, made.batch_size, made.steps)
    yield from in_words(epsilon, facts.delta, attacks_on_training(noise), unit)
    yield ""
    setting, tuning = _section(sweep, facts, made), _tuning(facts, made)
    if refused := release_mistakes(study, setting):
        yield "no section release, because the study would be refused with it:"
        yield from refused
        return
    yield "release:"
    for key, found in setting.items():
        yield f"  {key}: {yaml_line(found)}"
    if not release_mistakes(study, setting | tuning):
        yield "  # To tune around this setting, with the choice covered by the same epsilon:"
        for key, found in tuning.items():
            yield f"  # {key}: {yaml_line(found)}"


def compared_epochs(
    study: Study, sweep: str, epsilon: float, paths: Paths | None = None
) -> Iterator[str]:
    """Yield the recommendations for several numbers of epochs, with their cost and gain in stored sweeps.

    Args:
        study: the study; its dataset need not be prepared.
        sweep: the name of a sweep.
        epsilon: of one training run.
        paths: of the study's backbones.

    Raises:
        BackboneError: the network cannot be built.
        CalibrationError: no noise gives this epsilon and delta.
        NoAdviceError: the formula does not cover the sweep's optimizer.
    """
    facts = facts_of_sweep(study, sweep, epsilon, 1, paths)
    yield "epochs  batch size  steps  clipping bound  learning rate  gradients of examples  gained"
    short = False
    for epochs, gained in GAINED.items():
        made = recommend(replace(facts, epochs=epochs))
        short |= made.steps < LEAST_STEPS
        steps = f"{made.steps}{'*' if made.steps < LEAST_STEPS else ''}"
        yield (
            f"{epochs:6}  {made.batch_size:10}  {steps:>5}  {_short(made.clipping_bound):>14}  "
            f"{_short(made.learning_rate):>13}  {epochs * facts.train_size:21,}  {gained}"
        ).rstrip()
    yield (
        "gained: points of macro accuracy beside the row before, at the same epsilon: the mean over the "
        f"stored sweeps, and from the lowest to the highest ({documentation('recommend.md')})"
    )
    if short:
        yield f"* fewer than {LEAST_STEPS} steps: train longer"
    yield _norm_line(facts)
    yield f"{_READ}. --epochs prints one of them as a section release"


def _norm_line(facts: ProblemFacts) -> str:
    """Return G, where it comes from, and how to know it better."""
    line = f"gradient norm    {facts.gradient_norm:.3g} of an example before training: {facts.norm_source}"
    if facts.norm_source == "a guess":
        line += (
            ". Prepare the network (dpsweep prepare-backbone NAME) and call this again; for a head, "
            "features: {transformation: layer-norm} of the backbone give it exactly"
        )
    return line


def release_mistakes(study: Study, section: Mapping[str, Any]) -> list[str]:
    """Return the reasons to refuse a study with a section ``release``."""
    release = Release.model_validate(section)
    return list(disagreements(study.model_copy(update={"release": release})))


def _table(facts: ProblemFacts, made: Recommendation) -> Iterator[str]:
    few = f" (fewer than {LEAST_STEPS}: train longer)" if made.steps < LEAST_STEPS else ""
    yield f"batch size       {made.batch_size}, {made.steps} steps{few}"
    yield f"clipping bound   {_short(made.clipping_bound)}"
    yield f"learning rate    {_short(made.learning_rate)}"
    runs = sum(map(len, made.small_grid.values()))
    yield f"small grid       {runs} runs, with this clipping bound:"
    for size, rates in made.small_grid.items():
        *others, last = map(_short, rates)
        yield f"                 batch size {size}, learning rate {', '.join(others)} or {last}"
    yield _norm_line(facts)
    yield _READ


def _section(sweep: str, facts: ProblemFacts, made: Recommendation) -> dict[str, Any]:
    """Return the keys of a section ``release`` that trains the setting."""
    section = {"sweep": sweep, "epsilon": facts.epsilon, "epochs": [facts.epochs]}
    return section | one_setting(facts, made)


def one_setting(facts: ProblemFacts, made: Recommendation) -> dict[str, Any]:
    """Return the axes of a grid that has the recommended setting alone."""
    return {
        "batch_size": _sizes([made.batch_size], facts),
        "clipping_bound": [two_digits(made.clipping_bound)],
        "learning_rate": [two_digits(made.learning_rate)],
    }


def _tuning(facts: ProblemFacts, made: Recommendation) -> dict[str, Any]:
    """Return the keys that tune around the setting: every rate with every batch size."""
    return {
        "selection": "private",
        "batch_size": _sizes(made.small_grid, facts),
        "learning_rate": [two_digits(factor * made.learning_rate) for factor in RATES],
    }


def _sizes(sizes: Iterable[int], facts: ProblemFacts) -> list[BatchSize]:
    return ["full" if size == facts.train_size else size for size in sizes]


def two_digits(value: float) -> float:
    """Return a recommended number with the digits that it is worth."""
    return float(f"{value:.2g}")


def _short(value: float) -> str:
    return number(two_digits(value))
