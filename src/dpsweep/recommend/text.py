"""Recommended hyperparameters, printed as a table and as a section ``release`` of a study."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from dpsweep.privacy.calibration import calibrate
from dpsweep.privacy.explain import in_words
from dpsweep.privacy.trade_off import attacks_on_training
from dpsweep.recommend import rule
from dpsweep.recommend.rule import ProblemFacts, Recommendation
from dpsweep.study import Study
from dpsweep.study.cells import BatchSize, number
from dpsweep.study.checks import disagreements
from dpsweep.study.load import documentation, yaml_line
from dpsweep.study.paths import Paths
from dpsweep.study.release import Release

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
    facts = rule.facts_of_sweep(study, sweep, epsilon, epochs, paths)
    made = rule.recommend(facts)
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
    facts = rule.facts_of_sweep(study, sweep, epsilon, 1, paths)
    yield "epochs  batch size  steps  clipping bound  learning rate  gradients of examples  gained"
    short = False
    for epochs, gained in GAINED.items():
        made = rule.recommend(replace(facts, epochs=epochs))
        short |= made.steps < rule.LEAST_STEPS
        steps = f"{made.steps}{'*' if made.steps < rule.LEAST_STEPS else ''}"
        yield (
            f"{epochs:6}  {made.batch_size:10}  {steps:>5}  {_short(made.clipping_bound):>14}  "
            f"{_short(made.learning_rate):>13}  {epochs * facts.train_size:21,}  {gained}"
        ).rstrip()
    yield (
        "gained: points of macro accuracy beside the row before, at the same epsilon: the mean over the "
        f"stored sweeps, and from the lowest to the highest ({documentation('recommend.md')})"
    )
    if short:
        yield f"* fewer than {rule.LEAST_STEPS} steps: train longer"
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
    few = f" (fewer than {rule.LEAST_STEPS}: train longer)" if made.steps < rule.LEAST_STEPS else ""
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
    return {
        "sweep": sweep,
        "epsilon": facts.epsilon,
        "epochs": [facts.epochs],
        "batch_size": _sizes([made.batch_size], facts),
        "clipping_bound": [_two_digits(made.clipping_bound)],
        "learning_rate": [_two_digits(made.learning_rate)],
    }


def _tuning(facts: ProblemFacts, made: Recommendation) -> dict[str, Any]:
    """Return the keys that tune around the setting: every rate with every batch size."""
    return {
        "selection": "private",
        "batch_size": _sizes(made.small_grid, facts),
        "learning_rate": [_two_digits(factor * made.learning_rate) for factor in rule.RATES],
    }


def _sizes(sizes: Iterable[int], facts: ProblemFacts) -> list[BatchSize]:
    return ["full" if size == facts.train_size else size for size in sizes]


def _two_digits(value: float) -> float:
    return float(f"{value:.2g}")


def _short(value: float) -> str:
    return number(_two_digits(value))
