"""A recommendation as a table, and as a section of a study."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import yaml

from dpsweep.privacy.calibration import calibrate
from dpsweep.privacy.explain import in_words
from dpsweep.privacy.trade_off import attacks_on_training
from dpsweep.recommend.references import (
    read_references,
    references_of,
    swept_problems,
    trained_settings,
    unrelated,
)
from dpsweep.recommend.rule import (
    LEAST_STEPS,
    Recommendation,
    Reference,
    SettingEstimate,
    Situation,
    recommend,
)
from dpsweep.recommend.situation import situation_of
from dpsweep.study import Study
from dpsweep.study.config import Release
from dpsweep.study.config.checks import disagreements


def recommendation(
    study: Study, sweep: str, epsilon: float, epochs: int, folders: Sequence[Path]
) -> Iterator[str]:
    """Yield what is recommended for what a sweep trains, line by line.

    Where the study would be refused with the section ``release``, the reason stands in its place.

    Args:
        study: the study; its dataset need not be prepared.
        sweep: the name of a sweep.
        epsilon: of one training run.
        epochs: of one training run.
        folders: folders of problem tables to take reference points from; none takes those that come
            with dpsweep.

    Raises:
        BackboneError: the network cannot be built.
        CalibrationError: epsilon or delta cannot be had.
        NoReferenceError: there is no reference point of other data.
    """
    known = (
        references_of(swept_problems(trained_settings(folders))) if folders else read_references()
    )
    situation = situation_of(study, sweep, epsilon, epochs)
    made = recommend(situation, unrelated(known, study.sweeps[sweep].dataset))
    yield from _table(made)
    yield ""
    yield from _meaning(situation, made)
    yield ""
    setting, tuning = _section(sweep, situation, made), _tuning(made)
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


def release_mistakes(study: Study, section: Mapping[str, str]) -> list[str]:
    """Return why a study would be refused with a section ``release``, whose values are YAML."""
    written = "\n".join(f"{key}: {found}" for key, found in section.items())
    release = Release.model_validate(yaml.safe_load(written))
    return list(disagreements(study.model_copy(update={"release": release})))


def _table(made: Recommendation) -> Iterator[str]:
    few = f" (fewer than {LEAST_STEPS}: train longer)" if made.steps < LEAST_STEPS else ""
    yield f"batch size       {made.batch_size}, {made.steps} steps{few}"
    yield f"clipping bound   {_sure(made.clipping_bound)}"
    yield f"learning rate    {_sure(made.learning_rate)}"
    points = f"{len(made.references)} reference points ({_sources(made.references)})"
    yield f"read: the study's file and {points}; no data"


def _meaning(situation: Situation, made: Recommendation) -> Iterator[str]:
    """Say what the guarantee means for one person in a training run with the recommended B and T."""
    epsilon, delta = situation.epsilon, situation.delta
    noise = calibrate(epsilon, delta, situation.train_size, made.batch_size, made.steps)
    yield from in_words(epsilon, delta, attacks_on_training(noise))


def _sure(estimate: SettingEstimate) -> str:
    return f"{estimate.value:.2g}, reference points scatter by a factor of {estimate.factor:.1f}"


def _sources(references: Sequence[Reference]) -> str:
    return ", ".join(sorted({f"{each.dataset} {each.method}" for each in references}))


def _section(sweep: str, situation: Situation, made: Recommendation) -> dict[str, str]:
    """The keys of a section that trains the setting."""
    size = "full" if made.batch_size == situation.train_size else made.batch_size
    return {
        "sweep": sweep,
        "epsilon": f"{situation.epsilon:g}",
        "epochs": f"[{situation.epochs}]",
        "batch_size": f"[{size}]",
        "clipping_bound": _listed([made.clipping_bound.value]),
        "learning_rate": _listed([made.learning_rate.value]),
    }


def _tuning(made: Recommendation) -> dict[str, str]:
    """What is different in a section that tunes around the setting."""
    return {
        "selection": "private",
        "clipping_bound": _listed(made.clipping_bound.grid),
        "learning_rate": _listed(made.learning_rate.grid),
    }


def _listed(values: Sequence[float]) -> str:
    digits = [float(f"{value:.2g}") for value in values]
    return f"[{', '.join(f'{value:g}' for value in digits)}]"
