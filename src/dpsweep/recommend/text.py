"""A recommendation as a table, and as a section of a study."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import yaml

from dpsweep.config import Release
from dpsweep.config.cells import number
from dpsweep.config.checks import disagreements
from dpsweep.privacy.calibration import calibrate
from dpsweep.privacy.explain import in_words
from dpsweep.privacy.trade_off import attacks_on_training
from dpsweep.recommend.rule import LEAST_STEPS, RATES, Recommendation, Situation, recommend
from dpsweep.recommend.situation import situation_of
from dpsweep.study import Study

GAINED = {
    1: "",
    4: "+4.3 (+1.7 to +8.9, 4 settings)",
    16: "+1.7 (−2.0 to +6.3, 10 settings)",
    64: "+0.2 (−2.7 to +2.9, 4 settings)",
}
"""Points that epochs gained beside a quarter of them in the stored sweeps, by epochs (docs/recommend.md)."""
_READ = "read: the study's file; no data"


def recommendation(study: Study, sweep: str, epsilon: float, epochs: int) -> Iterator[str]:
    """Yield what is recommended for what a sweep trains, line by line.

    Where the study would be refused with the section ``release``, the reason stands in its place.

    Args:
        study: the study; its dataset need not be prepared.
        sweep: the name of a sweep.
        epsilon: of one training run.
        epochs: of one training run.

    Raises:
        BackboneError: the network cannot be built.
        CalibrationError: epsilon or delta cannot be had.
        NoAdviceError: the sweep's optimizer is not Adam.
    """
    situation = situation_of(study, sweep, epsilon, epochs)
    made = recommend(situation)
    yield from _table(made)
    yield ""
    yield from _meaning(situation, made)
    yield ""
    setting, tuning = _section(sweep, situation, made), _tuning(situation, made)
    if refused := release_mistakes(study, setting):
        yield "no section release, because the study would be refused with it:"
        yield from refused
        return
    yield "release:"
    for key, found in setting.items():
        yield f"  {key}: {found}"
    if not release_mistakes(study, setting | tuning):
        yield "  # To tune around this setting, with the choice covered by the same epsilon:"
        for key, found in tuning.items():
            yield f"  # {key}: {found}"


def compared_epochs(study: Study, sweep: str, epsilon: float) -> Iterator[str]:
    """Yield what is recommended for several numbers of epochs, what it costs, and what it gained elsewhere.

    Args:
        study: the study; its dataset need not be prepared.
        sweep: the name of a sweep.
        epsilon: of one training run.

    Raises:
        BackboneError: the network cannot be built.
        CalibrationError: epsilon or delta cannot be had.
        NoAdviceError: the sweep's optimizer is not Adam.
    """
    situation = situation_of(study, sweep, epsilon, 1)
    yield "epochs  batch size  steps  clipping bound  learning rate  gradients of examples  gained"
    short = False
    for epochs, gained in GAINED.items():
        made = recommend(replace(situation, epochs=epochs))
        short |= made.steps < LEAST_STEPS
        steps = f"{made.steps}{'*' if made.steps < LEAST_STEPS else ''}"
        yield (
            f"{epochs:6}  {made.batch_size:10}  {steps:>5}  {_short(made.clipping_bound):>14}  "
            f"{_short(made.learning_rate):>13}  {epochs * situation.train_size:21,}  {gained}"
        ).rstrip()
    yield (
        "gained: points of macro accuracy beside the row before, at the same epsilon: the mean over the "
        "stored sweeps, and from the lowest to the highest (docs/recommend.md)"
    )
    if short:
        yield f"* fewer than {LEAST_STEPS} steps: train longer"
    yield f"{_READ}. --epochs prints one of them as a section release"


def release_mistakes(study: Study, section: Mapping[str, str]) -> list[str]:
    """Return why a study would be refused with a section ``release``, whose values are YAML."""
    written = "\n".join(f"{key}: {found}" for key, found in section.items())
    release = Release.model_validate(yaml.safe_load(written))
    return list(disagreements(study.model_copy(update={"release": release})))


def _table(made: Recommendation) -> Iterator[str]:
    few = f" (fewer than {LEAST_STEPS}: train longer)" if made.steps < LEAST_STEPS else ""
    yield f"batch size       {made.batch_size}, {made.steps} steps{few}"
    yield f"clipping bound   {_short(made.clipping_bound)}"
    yield f"learning rate    {_short(made.learning_rate)}"
    runs = sum(map(len, made.small_grid.values()))
    yield f"small grid       {runs} runs, with this clipping bound:"
    for size, rates in made.small_grid.items():
        *others, last = map(_short, rates)
        yield f"                 batch size {size}, learning rate {', '.join(others)} or {last}"
    yield _READ


def _meaning(situation: Situation, made: Recommendation) -> Iterator[str]:
    """Say what the guarantee means for one person in a training run with the recommended B and T."""
    epsilon, delta = situation.epsilon, situation.delta
    noise = calibrate(epsilon, delta, situation.train_size, made.batch_size, made.steps)
    yield from in_words(epsilon, delta, attacks_on_training(noise))


def _section(sweep: str, situation: Situation, made: Recommendation) -> dict[str, str]:
    """The keys of a section that trains the setting."""
    return {
        "sweep": sweep,
        "epsilon": f"{situation.epsilon:g}",
        "epochs": f"[{situation.epochs}]",
        "batch_size": _sizes([made.batch_size], situation),
        "clipping_bound": _listed([made.clipping_bound]),
        "learning_rate": _listed([made.learning_rate]),
    }


def _tuning(situation: Situation, made: Recommendation) -> dict[str, str]:
    """Return the keys of a section that tunes around the setting: every rate with every batch size."""
    return {
        "selection": "private",
        "batch_size": _sizes(made.small_grid, situation),
        "learning_rate": _listed([factor * made.learning_rate for factor in RATES]),
    }


def _sizes(sizes: Iterable[int], situation: Situation) -> str:
    whole = situation.train_size
    return f"[{', '.join('full' if size == whole else str(size) for size in sizes)}]"


def _listed(values: Sequence[float]) -> str:
    return f"[{', '.join(map(_short, values))}]"


def _short(value: float) -> str:
    """With two digits, as YAML reads it."""
    return number(float(f"{value:.2g}"))
