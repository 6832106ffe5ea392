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
each seed but the first is left out once, the others choose, and the one that was left out measures. A seed
that diverged measures what the others of its cell do: a rare crash says nothing of the side it happens on.

What is left is a bias: noise chooses a reference that is not quite the best, and to replace it looks like a
gain. It is estimated by the parametric bootstrap (Efron and Tibshirani 1993, section 10) and subtracted: the
means of the cells are taken for the truth, noise of the measured size is added many times, and the mean
effect of these simulated trials is compared with the effect that those means have without noise.

docs/statistics.md compares this effect with others.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from dpsweep.analysis.grids import (
    CONDITIONS,
    Array,
    Axis,
    Condition,
    Grid,
    alike,
    at,
    at_each,
    best,
    mean_without,
    with_common,
    without_diverged,
)
from dpsweep.analysis.scatter import pooled_variance
from dpsweep.config.cells import number

Side = Literal["larger", "smaller"]
Cells = tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]
"""Positions of B and of C."""
SYMBOL: dict[Axis, str] = {"batch_size": "B", "clipping_bound": "C"}
DRAWS, FEWEST_DRAWS = 200, 4
"""Bootstrap draws for one study, and for each of many simulated ones: their noise averages out."""


@dataclass(frozen=True)
class Comparison:
    """One piece of evidence for or against a rule.

    Attributes:
        grids: the grids that are compared, from the easiest condition to the hardest.
        unit: what it is evidence about, whatever its epsilon and epochs: a problem, or a pair of problems.
        found: the values that the rule of choice takes in each of them, in words.
        effect: in the rule's unit, positive as the rule says; shape (...) as the grids'.
        noise: the standard error of a cell's accuracy under the easiest condition, in the rule's unit, seeds
            and test set together. A reference that is off by that much looks like a gain of that size; same
            shape.
        test_error: the standard error of the effect that comes from the test set alone
            (`variance_of_test_set`); same shape.
        reference_at: the end of the grid at which the easiest condition's best value lies, or "". The
            true best value may lie beyond it, and there is nothing to try on that side.
    """

    grids: Sequence[Grid]
    unit: tuple[str, ...]
    found: Sequence[str]
    effect: Array
    noise: Array
    test_error: Array
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

    @property
    def unit_name(self) -> str:
        """Name its units, in the plural."""
        return "pairs of problems" if self.changes in ("dataset", "backbone") else "problems"

    def compare(self, grids: Sequence[Grid], corrected: bool = True) -> Iterator[Comparison]:
        """Yield all comparisons that the grids of a study allow. No two of them share a trial.

        With several values of epsilon, or numbers of epochs, the easiest one is compared with all others,
        and the effect is the slope through zero: points per halving. Of several datasets or
        backbones the easiest and the hardest are compared, by the accuracy that they reach.

        Args:
            grids: of the study.
            corrected: whether the bias of the gain is subtracted.
        """
        random = np.random.default_rng(0) if corrected else None
        if self.changes is None:
            for grid in grids:
                if len(grid.clipping_bound) > 1 and len(grid.batch_size) > 1:
                    yield self._comparison([grid], random)
            return
        for group in alike(grids, self.changes):
            series = with_common(group, self.axis)
            if len(series) > 1:
                yield self._comparison(_from_easy_to_hard(series, self.changes), random)

    def gain(self, series: Sequence[Grid]) -> Array:
        """Return what following the rule gains, as it is measured, in the rule's unit.

        Args:
            series: grids from the easiest condition to the hardest; one for the rule about joint tuning.
        """
        if self.changes is None:
            return gain_of_joint_tuning(series[0])
        gains = [gain_of_adapting(series[0], grid, self.axis, self.side) for grid in series[1:]]
        gain: Array = np.tensordot(slope_weights(self._distances(series)), gains, axes=1)
        return gain

    def _distances(self, series: Sequence[Grid]) -> Array:
        """Return how far the harder conditions are from the easiest one, in the unit of the effect."""
        if self.changes not in ("epsilon", "epochs"):
            return np.ones(1)
        values = [getattr(grid, self.changes) for grid in series]
        distances: Array = np.log2(values[0] / np.array(values[1:]))
        return distances

    def _comparison(self, series: Sequence[Grid], random: np.random.Generator | None) -> Comparison:
        easiest = series[0]
        unit = [
            getattr(easiest, name)
            for name in ("dataset", "backbone", "method", "optimizer")
            if name != self.changes
        ]
        effect = self.gain(series)
        if random is not None:
            effect = effect - bias(self.gain, series, random, rates=self.changes is None)
        if self.changes is None:
            found = [
                f"{symbol} = {number(_chosen(easiest, axis))}" for axis, symbol in SYMBOL.items()
            ]
            test_error = np.sqrt(2) * 100 * error_of_test_set(easiest)
            return Comparison(series, tuple(unit), found, effect, np.zeros_like(effect), test_error)
        weights = slope_weights(self._distances(series))
        chosen = [_chosen(grid, self.axis) for grid in series]
        values = getattr(easiest, self.axis)
        ends = {values[0]: "smallest", values[-1]: "largest"}
        noise = np.hypot(standard_error(easiest), error_of_test_set(easiest))
        variances = [variance_of_test_set(easiest, grid, self.axis) for grid in series[1:]]
        return Comparison(
            series,
            tuple(unit),
            [f"{SYMBOL[self.axis]} = {number(value)}" for value in chosen],
            effect,
            100 * noise * weights.sum(),
            np.sqrt(np.tensordot(weights**2, variances, axes=1)),
            ends.get(chosen[0], ""),
        )


def bias(
    gain: Callable[[Sequence[Grid]], Array],
    series: Sequence[Grid],
    random: np.random.Generator,
    rates: bool,
) -> Array:
    """Estimate by how much noise alone moves a gain; see the module.

    Args:
        gain: takes the grids of a comparison; what it returns is biased.
        series: the grids that were measured.
        random: source of randomness.
        rates: whether the gain looks at the learning rates.

    Returns:
        Shape (...) as the grids', in the unit of the gain. NaN with a single seed.
    """
    studies = int(np.prod(series[0].accuracy.shape[:-3]))
    draws = max(FEWEST_DRAWS, DRAWS // studies)
    moved: Array = gain([redrawn(grid, draws, random, rates) for grid in series]).mean(axis=0)
    return moved - gain([without_noise(grid) for grid in series])


def without_noise(grid: Grid) -> Grid:
    """Return a grid whose seeds all have the mean of their cell, and rates what they were measured as."""
    selection, accuracy = (
        np.broadcast_to(_mean(each)[..., np.newaxis], (*each.shape[:-1], 2))
        for each in (grid.selection, grid.accuracy)
    )
    return replace(grid, selection=selection, accuracy=accuracy)


def redrawn(grid: Grid, draws: int, random: np.random.Generator, rates: bool) -> Grid:
    """Return a grid with new noise of the measured size around the means of its cells.

    Args:
        grid: arrays of shape (..., B, C, seeds).
        draws: length of the new leading axis.
        random: source of randomness.
        rates: whether ``tuning`` has new noise as well; else it stays without the leading axis.
    """

    def noisy(values: Array, around: Array) -> Array:
        scatter = _scatter(values)[..., np.newaxis, np.newaxis, np.newaxis]
        found: Array = around + scatter * random.standard_normal((draws, *values.shape))
        return found

    selection = accuracy = noisy(grid.selection, _mean(grid.selection)[..., np.newaxis])
    if grid.accuracy is not grid.selection and not np.array_equal(grid.accuracy, grid.selection):
        accuracy = noisy(grid.accuracy, _mean(grid.accuracy)[..., np.newaxis])
    tuning = grid.tuning
    if rates:
        scatter = _scatter(grid.selection)[..., np.newaxis, np.newaxis, np.newaxis]
        tuning = tuning + scatter * random.standard_normal((draws, *tuning.shape))
    return replace(grid, selection=selection, accuracy=accuracy, tuning=tuning)


def _mean(values: Array) -> Array:
    """Return the mean of every cell over the seeds that did not tune it, or over the only one."""
    values = without_diverged(values)
    return values[..., 1:].mean(axis=-1) if values.shape[-1] > 1 else values[..., 0]


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
    if harder.seeds == 1:
        return np.full(harder.accuracy.shape[:-3], np.nan)
    likely, measured = _likely_best(easier, axis), without_diverged(harder.accuracy)
    differences = []
    for seed in range(1, harder.seeds):
        smaller, larger = _tuned_on_both_sides(harder, seed, axis)
        differences.append(
            at_each(measured[..., seed], *larger) - at_each(measured[..., seed], *smaller)
        )
    gain: Array = 100 * (likely * np.mean(differences, axis=0)).sum(axis=-1)
    return gain if side == "larger" else -gain


def variance_of_test_set(easier: Grid, harder: Grid, axis: Axis) -> Array:
    """Return the variance of a `gain_of_adapting` that comes from the test set, at most; squared points.

    Two networks of accuracy p that err independently differ by a number of variance 2 p (1 - p) / n on n
    test examples (binomial). Networks that are alike differ by less, and a cell does not differ from itself.
    """
    if harder.seeds == 1:
        return np.full(harder.accuracy.shape[:-3], np.nan)
    differing = []
    for seed in range(1, harder.seeds):
        smaller, larger = _tuned_on_both_sides(harder, seed, axis)
        differing.append((smaller[0] != larger[0]) | (smaller[1] != larger[1]))
    share = (_likely_best(easier, axis) * np.mean(differing, axis=0)).sum(axis=-1)
    variance: Array = 2 * (100 * error_of_test_set(harder)) ** 2 * share
    return variance


def _tuned_on_both_sides(grid: Grid, left_out: int, axis: Axis) -> tuple[Cells, Cells]:
    """Return the cells (B, C) that all seeds but one choose on both sides of every value of an axis.

    Returns:
        The choice among values that are not larger, and among those that are not smaller, each as
        positions of B and of C with shape (..., values). Ties go to the smallest.
    """
    seen = mean_without(grid.selection, left_out)
    if axis == "batch_size":
        seen = np.swapaxes(seen, -1, -2)
    other, profile = seen.argmax(axis=-2), seen.max(axis=-2)
    places = np.arange(profile.shape[-1])
    # A value is chosen on its left if no smaller one is as good, and on its right if no larger one is better.
    lead = np.maximum.accumulate(profile, axis=-1)
    ahead = np.concatenate(
        [np.ones_like(lead[..., :1], bool), lead[..., 1:] > lead[..., :-1]], axis=-1
    )
    left = np.maximum.accumulate(np.where(ahead, places, 0), axis=-1)
    trail = np.maximum.accumulate(profile[..., ::-1], axis=-1)[..., ::-1]
    right = np.minimum.accumulate(
        np.where(profile >= trail, places, places[-1])[..., ::-1], axis=-1
    )[..., ::-1]
    found: list[Cells] = []
    for chosen in (left, right):
        of_other = np.take_along_axis(other, chosen, axis=-1)
        found.append((chosen, of_other) if axis == "batch_size" else (of_other, chosen))
    return found[0], found[1]


def standard_error(grid: Grid) -> Array:
    """Return the standard error of a cell's mean selection accuracy over seeds, pooled over cells.

    Returns:
        Shape (...). NaN with a single seed.
    """
    error: Array = _scatter(grid.selection) / np.sqrt(grid.seeds)
    return error


def error_of_test_set(grid: Grid) -> Array:
    """Return the standard error of an accuracy that comes from the test set: binomial; shape (...)."""
    accuracy = grid.selection.mean(axis=-1).max(axis=(-2, -1)).clip(0, 1)
    error: Array = np.sqrt(accuracy * (1 - accuracy) / grid.test_size)
    return error


def _scatter(values: Array) -> Array:
    """Return the standard deviation of seeds, as `pooled_variance` has it; NaN with a single seed."""
    if values.shape[-1] == 1:
        return np.full(values.shape[:-3], np.nan)
    scatter: Array = np.sqrt(pooled_variance(values)[0])
    return scatter


def _likely_best(grid: Grid, axis: Axis) -> Array:
    """Return weights of the values of an axis, shape (..., values): how likely each is the best.

    A value weighs exp(accuracy / standard error), where the accuracy is the highest mean over seeds at
    this value, and the standard error of such a mean is pooled over the cells of the grid.
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
