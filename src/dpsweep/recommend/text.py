"""A recommendation as a table, and as a section of a study."""

from collections.abc import Iterator, Sequence
from pathlib import Path

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


def recommendation(
    study: Study, sweep: str, epsilon: float, epochs: int, folders: Sequence[Path]
) -> Iterator[str]:
    """Yield what is recommended for what a sweep trains, line by line.

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
    yield from _section(sweep, situation, made)


def _table(made: Recommendation) -> Iterator[str]:
    few = f" (fewer than {LEAST_STEPS}: train longer)" if made.steps < LEAST_STEPS else ""
    yield f"batch size       {made.batch_size}, {made.steps} steps{few}"
    yield f"clipping bound   {_sure(made.clipping_bound)}"
    yield f"learning rate    {_sure(made.learning_rate)}"
    points = f"{len(made.references)} reference points ({_sources(made.references)})"
    yield f"read: the study's file and {points}; no data"


def _sure(estimate: SettingEstimate) -> str:
    return f"{estimate.value:.2g}, reference points scatter by a factor of {estimate.factor:.1f}"


def _sources(references: Sequence[Reference]) -> str:
    return ", ".join(sorted({f"{each.dataset} {each.method}" for each in references}))


def _section(sweep: str, situation: Situation, made: Recommendation) -> Iterator[str]:
    def listed(values: Sequence[float]) -> str:
        return ", ".join(f"{value:g}" for value in values)

    size = "full" if made.batch_size == situation.train_size else made.batch_size
    yield "release:"
    yield f"  sweep: {sweep}"
    yield f"  epsilon: {situation.epsilon:g}"
    yield f"  epochs: [{situation.epochs}]"
    yield f"  batch_size: [{size}]"
    yield f"  clipping_bound: [{made.clipping_bound.value:.2g}]"
    yield f"  learning_rate: [{made.learning_rate.value:.2g}]"
    yield "  # To tune around this setting, with the choice covered by the same epsilon:"
    yield "  # selection: private"
    yield f"  # clipping_bound: [{listed(made.clipping_bound.grid)}]"
    yield f"  # learning_rate: [{listed(made.learning_rate.grid)}]"
