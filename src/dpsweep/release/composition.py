"""Composition of releases on the same data: their joint epsilon, and the rest of a study's budget."""

from collections.abc import Sequence
from dataclasses import dataclass

from dpsweep.base.numbers import rounded_down, rounded_up
from dpsweep.data.prepared import DatasetError, read_metadata
from dpsweep.privacy import Calibration, CalibrationError
from dpsweep.privacy.accountants import composed_epsilon, total_delta
from dpsweep.release import ReleaseError
from dpsweep.release.certificate import ReleasedModel, Releases
from dpsweep.release.ledger import Ledger, LedgerEntry
from dpsweep.study import Study
from dpsweep.study.datasets import origins
from dpsweep.study.paths import Paths
from dpsweep.study.release import Release


def joint_epsilon(
    earlier: Sequence[ReleasedModel],
    noise: Calibration | None,
    epsilon: float,
    delta: float,
    joint_delta: float,
) -> float:
    """Return the joint epsilon of earlier models and a new one, at a joint delta.

    Args:
        earlier: the earlier models.
        noise: of the new model; None if its epsilon covers a choice among several trials.
        epsilon: of the new model.
        delta: of the new model.
        joint_delta: of all models together.

    Returns:
        The epsilon; infinity if the deltas of guarantees without noise sum to more than the joint delta.
    """
    if not earlier and delta <= joint_delta:
        return epsilon
    models = [
        *((each.noise, each.epsilon, each.delta) for each in earlier),
        (noise, epsilon, delta),
    ]
    return composed_epsilon(
        [noise for noise, _, _ in models if noise is not None],
        [(epsilon, delta) for noise, epsilon, delta in models if noise is None],
        joint_delta,
    )


def released_together(
    earlier: list[ReleasedModel],
    noise: Calibration | None,
    epsilon: float,
    delta: float,
    unit: str | None = None,
) -> Releases:
    """Return the earlier models with the joint epsilon and delta of these and a new one.

    Args:
        earlier: the earlier models.
        noise: of the new model; None if its epsilon covers a choice among several trials.
        epsilon: of the new model.
        delta: of the new model.
        unit: what the new model protects; see `DataSplit`.

    Raises:
        CalibrationError: the deltas sum to 1 or more, so there is no guarantee, or an earlier model protects
            another unit.
    """
    if others := [each for each in earlier if each.unit != unit]:
        raise CalibrationError(
            f"releases: found {len(others)} earlier on the same data with unit: {others[0].unit or 'row'}, "
            f"and this one with unit: {unit or 'row'}; allowed: one unit for all, because their epsilons are "
            "different guarantees, which have no joint one"
        )
    joint_delta = total_delta([delta, *(each.delta for each in earlier)])
    if joint_delta >= 1:
        raise CalibrationError(
            f"releases: found deltas that are {joint_delta:g} together; allowed: below 1"
        )
    joint = joint_epsilon(earlier, noise, epsilon, delta, joint_delta)
    return Releases(earlier=earlier, joint_epsilon=joint, joint_delta=joint_delta)


def refuse_beyond_budget(
    study: Study, release: Release, earlier: Sequence[ReleasedModel], noise: Calibration | None
) -> None:
    """Refuse a release if all releases on its data would together exceed the study's budget.

    Args:
        study: the study; without a section ``budget`` nothing is refused.
        release: the new release.
        earlier: the earlier releases.
        noise: of the new release; None if its epsilon covers a choice among several trials.

    Raises:
        ReleaseError: they would exceed it.
    """
    budget = study.budget
    left = _left(study, earlier)
    if budget is None or left is None or release.epsilon <= left:
        return
    joint = joint_epsilon(earlier, noise, release.epsilon, study.privacy.delta, budget.delta)
    if joint > budget.epsilon:
        others = f" and {len(earlier)} earlier on the same data" if earlier else ""
        raise ReleaseError(
            f"release.epsilon: found {rounded_up(release.epsilon)}, which{others} makes epsilon "
            f"{rounded_up(joint, 4)} at delta {budget.delta:g}; allowed: up to the study's budget of "
            f"{rounded_down(budget.epsilon)} together, of which epsilon {rounded_down(left, 4)} is left. "
            "Nothing was released"
        )


@dataclass(frozen=True)
class Account:
    """All releases on the data of a study's section `release`.

    Attributes:
        lines: their ledger entries, oldest first.
        epsilon: of all together.
        delta: of all together.
        left: largest epsilon of a next release at the study's delta within its budget, by basic
            composition; None without a budget.
    """

    lines: list[LedgerEntry]
    epsilon: float
    delta: float
    left: float | None


def account(study: Study, paths: Paths) -> Account | None:
    """Return the releases on the data of a study's section `release`; None without the section or data.

    Raises:
        ReleaseError: the ledger is damaged.
    """
    if study.release is None:
        return None
    dataset = study.sweeps[study.release.sweep].dataset
    try:
        data = read_metadata(paths.dataset(dataset)).checksum
    except DatasetError:
        return None
    lines = Ledger(paths.ledger).lines_of(data, origins(study.datasets[dataset].source))
    models = [line.model for line in lines]
    delta = total_delta(each.delta for each in models)
    return Account(
        lines=lines,
        epsilon=_spent(models, delta),
        delta=delta,
        left=_left(study, models),
    )


def _spent(models: Sequence[ReleasedModel], delta: float) -> float:
    """Return the joint epsilon of models at a joint delta."""
    if not models:
        return 0.0
    *earlier, last = models
    return joint_epsilon(earlier, last.noise, last.epsilon, last.delta, delta)


def _left(study: Study, models: Sequence[ReleasedModel]) -> float | None:
    budget, delta = study.budget, study.privacy.delta
    if budget is None:
        return None
    if not models:
        return budget.epsilon if delta <= budget.delta else 0.0
    rest = total_delta([budget.delta, -delta])
    return max(0.0, budget.epsilon - _spent(models, rest)) if rest > 0 else 0.0
