"""Composition of releases on the same data: their joint epsilon, and the rest of a study's budget."""

from collections.abc import Sequence
from dataclasses import dataclass

from dpsweep.base.numbers import rounded_down, rounded_up
from dpsweep.data.prepared import DatasetError, read_metadata
from dpsweep.privacy import CalibrationError
from dpsweep.privacy.accountants import composed_epsilon, total_delta
from dpsweep.release import ReleaseError
from dpsweep.release.certificate import ReleasedModel, Releases
from dpsweep.release.ledger import Ledger, LedgerEntry
from dpsweep.study import Study
from dpsweep.study.datasets import origins
from dpsweep.study.paths import Paths


def joint_epsilon(models: Sequence[ReleasedModel], delta: float) -> float:
    """Return the joint epsilon of models at a joint delta.

    Args:
        models: the models, in any order.
        delta: of all models together.

    Returns:
        The epsilon; infinity if the deltas of guarantees without noise sum to more than the joint delta.
    """
    if not models:
        return 0.0
    if len(models) == 1 and models[0].delta <= delta:
        return models[0].epsilon
    return composed_epsilon(
        [each.noise for each in models if each.noise is not None],
        [(each.epsilon, each.delta) for each in models if each.noise is None],
        delta,
    )


def released_together(earlier: list[ReleasedModel], new: ReleasedModel) -> Releases:
    """Return the earlier models with the joint epsilon and delta of these and a new one.

    Raises:
        CalibrationError: the deltas sum to 1 or more, so there is no guarantee, or an earlier model protects
            another unit.
    """
    if others := [each for each in earlier if each.unit != new.unit]:
        raise CalibrationError(
            f"releases: found {len(others)} earlier on the same data with unit: {others[0].unit or 'row'}, "
            f"and this one with unit: {new.unit or 'row'}; allowed: one unit for all, because their epsilons "
            "are different guarantees, which have no joint one"
        )
    models = [*earlier, new]
    delta = total_delta(each.delta for each in models)
    if delta >= 1:
        raise CalibrationError(
            f"releases: found deltas that are {delta:g} together; allowed: below 1"
        )
    return Releases(earlier=earlier, joint_epsilon=joint_epsilon(models, delta), joint_delta=delta)


def refuse_beyond_budget(
    study: Study, earlier: Sequence[ReleasedModel], new: ReleasedModel
) -> None:
    """Refuse a release if all releases on its data would together exceed the study's budget.

    Args:
        study: the study; without a section ``budget`` nothing is refused.
        earlier: the earlier releases.
        new: the new release.

    Raises:
        ReleaseError: they would exceed it.
    """
    budget, left = study.budget, _left(study, earlier)
    if budget is None or left is None or new.epsilon <= left:
        return
    joint = joint_epsilon([*earlier, new], budget.delta)
    if joint > budget.epsilon:
        others = f" and {len(earlier)} earlier on the same data" if earlier else ""
        raise ReleaseError(
            f"release.epsilon: found {rounded_up(new.epsilon)}, which{others} makes epsilon "
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
    return Account(lines, joint_epsilon(models, delta), delta, _left(study, models))


def _left(study: Study, models: Sequence[ReleasedModel]) -> float | None:
    budget, delta = study.budget, study.privacy.delta
    if budget is None:
        return None
    rest = total_delta([budget.delta, -delta])
    if rest < 0 or (models and rest == 0):
        return 0.0
    return max(0.0, budget.epsilon - joint_epsilon(models, rest))
