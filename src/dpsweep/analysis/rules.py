"""The paper's tuning rules (its table 1) as questions about accuracy, and the comparisons that answer them.

Each rule says: under a harder condition, move one setting (C or B) in a certain direction. The question
is what a user gains who follows it. Take the value that was tuned under the easier condition, and tune
the setting again under the harder one, once towards the rule's side of that value and once towards the
other side, everything else tuned with it. The **gain of adapting** is the accuracy of the first choice
minus that of the second, in percentage points:

    gain = max over {C >= C_easy} of accuracy(C) - max over {C <= C_easy} of accuracy(C)

It is zero where there is nothing to gain: both sides contain the value itself, so if that is still the
best, or one of many on a plateau, the two are equal whatever the shape of the accuracies is, and however
much the level or the spread of accuracies differs between the conditions. It is positive where the rule's
side holds something better, and negative where the other side does.

The easier condition has trials of its own, so its choice has no part in the noise that is measured. Under
the harder one, seeds that measure take no part in the choice (cross-fitting, see `dpsweep.study.choice`):
each seed but the first is left out once, the others choose, and the one that was left out measures.
docs/statistics.md compares this effect with others.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dpsweep.analysis.grids import (
    CONDITIONS,
    Array,
    Axis,
    Condition,
    Grid,
    alike,
    at,
    best,
    mean_without,
    with_common,
)
from dpsweep.study.cells import number

Side = Literal["larger", "smaller"]
SYMBOL: dict[Axis, str] = {"batch_size": "B", "clipping_bound": "C"}


@dataclass(frozen=True)
class Comparison:
    """One piece of evidence for or against a rule.

    Attributes:
        grids: the grids that are compared, from the easiest condition to the hardest.
        found: the values that the rule of choice takes in each of them, in words.
        effect: in the rule's unit, positive as the rule says; shape (...) as the grids'.
        noise: the standard error of a cell's accuracy under the easiest condition, in the rule's unit. A
            reference that is off by that much looks like a gain of that size; same shape.
        reference_at: the end of the grid at which the easiest condition's best value lies, or "". The
            true best value may lie beyond it, and there is nothing to try on that side.
    """

    grids: Sequence[Grid]
    found: Sequence[str]
    effect: Array
    noise: Array
    reference_at: str = ""

    @property
    def row(self) -> dict[str, object]:
        """As a row of a table: every condition (its values, where they differ), found, effect."""
        conditions = {
            name: ", ".join(dict.fromkeys(_written(getattr(grid, name)) for grid in self.grids))
            for name in CONDITIONS
        }
        return conditions | {
            "found": ", ".join(self.found),
            "reference_at": self.reference_at,
            "seeds": min(grid.seeds for grid in self.grids),
            "effect": float(self.effect),
        }


@dataclass(frozen=True)
class Rule:
    """One claim of the paper's table. Two lines that say the same from both sides are one claim.

    Attributes:
        key: its name in files.
        condition: the change that makes tuning harder, in words.
        implication: the advice for it.
        effect: the measured quantity, in words.
        unit: of the effect.
        margin: the smallest effect worth speaking of, in its unit.
        changes: the condition that differs within a comparison; None for the rule about joint tuning.
        axis: the setting that the rule moves.
        side: the direction in which it moves.
    """

    key: str
    condition: str
    implication: str
    effect: str
    unit: str
    margin: float
    changes: Condition | None = None
    axis: Axis = "clipping_bound"
    side: Side = "larger"

    def compare(self, grids: Sequence[Grid]) -> Iterator[Comparison]:
        """Yield all comparisons that the grids of a study allow. No two of them share a trial.

        With several values of epsilon, or numbers of epochs, the easiest one is compared with all others,
        and the effect is the slope through zero: points per halving. Of several datasets or
        backbones the easiest and the hardest are compared, by the accuracy that they reach.
        """
        if self.changes is None:
            yield from _joint_comparisons(grids)
            return
        for group in alike(grids, self.changes):
            series = with_common(group, self.axis)
            if len(series) > 1:
                yield self._comparison(_from_easy_to_hard(series, self.changes))

    def _comparison(self, series: Sequence[Grid]) -> Comparison:
        easiest, harder = series[0], series[1:]
        gains = [gain_of_adapting(easiest, grid, self.axis, self.side) for grid in harder]
        distances = np.ones(1)
        if self.changes in ("epsilon", "epochs"):
            values = [getattr(grid, self.changes) for grid in series]
            distances = np.log2(values[0] / np.array(values[1:]))
        weights = slope_weights(distances)
        chosen = [_chosen(grid, self.axis) for grid in series]
        found = [f"{SYMBOL[self.axis]} = {number(value)}" for value in chosen]
        values = getattr(easiest, self.axis)
        ends = {values[0]: "smallest", values[-1]: "largest"}
        return Comparison(
            series,
            found,
            np.tensordot(weights, gains, axes=1),
            100 * standard_error(easiest) * weights.sum(),
            ends.get(chosen[0], ""),
        )


def slope_weights(distances: Array) -> Array:
    """Return weights with which values at some distances add up to the least-squares slope through zero."""
    weights: Array = distances / (distances @ distances)
    return weights


def gain_of_adapting(easier: Grid, harder: Grid, axis: Axis, side: Side) -> Array:
    """Return the gain of moving a setting to one side instead of the other; see the module.

    Args:
        easier: the grid whose best value is the reference.
        harder: the grid in which the setting is tuned again; it has the same values of the axis.
        axis: the setting.
        side: the side that counts as positive.

    Returns:
        Percentage points, shape (...). NaN with a single seed, since no seed is left to measure.
    """
    splits = range(1, harder.seeds)
    if not splits:
        return np.full(harder.accuracy.shape[:-3], np.nan)
    place = -2 if axis == "batch_size" else -1
    likely = _likely_best(easier, axis)
    gains = []
    for seed in splits:
        seen, measured = mean_without(harder.selection, seed), harder.accuracy[..., seed]
        for reference in range(likely.shape[-1]):
            larger, smaller = (
                at(
                    np.take(measured, side_of, axis=place),
                    *best(np.take(seen, side_of, axis=place)),
                )
                for side_of in (range(reference, likely.shape[-1]), range(reference + 1))
            )
            gains.append(likely[..., reference] * (larger - smaller))
    gain: Array = 100 * np.sum(gains, axis=0) / len(splits)
    return gain if side == "larger" else -gain


def standard_error(grid: Grid) -> Array:
    """Return the standard error of a cell's mean selection accuracy, pooled over cells.

    Returns:
        Shape (...). NaN with a single seed.
    """
    if grid.seeds == 1:
        return np.full(grid.accuracy.shape[:-3], np.nan)
    variance = grid.selection.var(axis=-1, ddof=1).mean(axis=(-2, -1))
    error: Array = np.sqrt(variance / grid.seeds)
    return error


def _likely_best(grid: Grid, axis: Axis) -> Array:
    """Return weights of the values of an axis, shape (..., values): how likely each is the best.

    A value weighs exp(accuracy / standard error), where the accuracy is the highest mean over seeds at
    this value, and the standard error of such a mean is pooled over all cells of the grid.
    """
    mean = grid.selection.mean(axis=-1)
    profile = mean.max(axis=-1 if axis == "batch_size" else -2)
    error = np.maximum(standard_error(grid), 1e-9)[..., np.newaxis]
    weights: Array = np.exp((profile - profile.max(axis=-1, keepdims=True)) / error)
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights


def gain_of_joint_tuning(grid: Grid) -> Array:
    """Return what tuning C, B and the learning rate jointly gains over tuning one after the other.

    One after the other: the learning rate at the middle B and C, then C with that rate, then B with both,
    and the learning rate again. All choices are made with the first seed; the other seeds measure.

    Returns:
        Percentage points, shape (...). NaN with a single seed.
    """
    if grid.seeds == 1:
        return np.full(grid.accuracy.shape[:-3], np.nan)
    tuning = np.nan_to_num(grid.tuning, nan=-np.inf)
    row, column = len(grid.batch_size) // 2, len(grid.clipping_bound) // 2
    rate = tuning[..., row, column, :].argmax(axis=-1)[..., np.newaxis, np.newaxis, np.newaxis]
    at_rate = np.take_along_axis(tuning, rate, axis=-1)[..., 0]
    columns = at_rate[..., row, :].argmax(axis=-1)
    rows = np.take_along_axis(at_rate, columns[..., np.newaxis, np.newaxis], axis=-1)[..., 0]
    one_by_one = rows.argmax(axis=-1), columns
    jointly = best(tuning.max(axis=-1))
    measured = grid.accuracy[..., 1:].mean(axis=-1)
    gain: Array = 100 * (at(measured, *jointly) - at(measured, *one_by_one))
    return gain


def _joint_comparisons(grids: Sequence[Grid]) -> Iterator[Comparison]:
    for grid in grids:
        if len(grid.clipping_bound) > 1 and len(grid.batch_size) > 1:
            chosen = [
                f"{symbol} = {number(_chosen(grid, axis))}" for axis, symbol in SYMBOL.items()
            ]
            gain = gain_of_joint_tuning(grid)
            yield Comparison([grid], chosen, gain, np.zeros_like(gain))


RULES = [
    Rule(
        "lower_epsilon_larger_bound", "Lower ε", "Increase C",
        "gain of a larger C over one that is not larger", "points per halving of ε", 0.1, "epsilon",
    ),
    Rule(
        "lower_epsilon_smaller_batch", "Lower ε", "Decrease B",
        "gain of a smaller B over one that is not smaller", "points per halving of ε", 0.1,
        "epsilon", "batch_size", "smaller",
    ),
    Rule(
        "weaker_backbone_larger_bound", "Weaker backbone", "Try larger C (stronger: smaller C)",
        "gain of a larger C over one that is not larger", "points", 0.5, "backbone",
    ),
    Rule(
        "harder_dataset_larger_bound", "Harder dataset", "Try larger C (easier: smaller C)",
        "gain of a larger C over one that is not larger", "points", 0.5, "dataset",
    ),
    Rule(
        "fewer_epochs_smaller_batch", "Fewer epochs", "Avoid large B (more: larger B viable)",
        "gain of a smaller B over one that is not smaller", "points per halving of epochs", 0.1,
        "epochs", "batch_size", "smaller",
    ),
    Rule(
        "tune_jointly", "Always", "Tune C, B and learning rate jointly",
        "gain over tuning one after the other", "points", 0.5,
    ),
]  # fmt: skip


def _from_easy_to_hard(series: Sequence[Grid], condition: Condition) -> list[Grid]:
    if condition in ("epsilon", "epochs"):
        return sorted(series, key=lambda grid: getattr(grid, condition), reverse=True)
    ranked = sorted(series, key=lambda grid: grid.reached, reverse=True)
    return [ranked[0], ranked[-1]]


def _chosen(grid: Grid, axis: Axis) -> float:
    """Return the value that the rule of choice takes (in simulated studies, that of the first)."""
    position = grid.choice()[0 if axis == "batch_size" else 1]
    value: float = getattr(grid, axis)[np.ravel(position)[0]]
    return value


def _written(value: object) -> str:
    return value if isinstance(value, str) else number(float(str(value)))
