"""The paper's tuning rules (its table 1): comparisons that measure the gain of each rule, and verdicts.

Each rule advises to move one setting (C or B) in a certain direction under a harder condition. To measure
the gain of a user who follows the rule, take the value that was tuned under the easier condition. Tune the
setting again under the harder one, once on the rule's side of this value and once on the other side, and
tune all other settings too. The **gain of adapting** is the accuracy of the first choice minus the accuracy
of the second, in percentage points:

    gain = max over {C >= C_easy} of accuracy(C) - max over {C <= C_easy} of accuracy(C)

The gain is zero if nothing can be gained. Both sides contain the value itself. So if it is still the best, or
one of many on a plateau, both maxima are equal: for any shape of the accuracies, and any difference in their
level or spread between the conditions. The gain is positive if the rule's side contains a better value, and
negative if the other side does.

The easier condition has its own trials, so its choice is independent of the measured noise. Under the harder
one, seeds that measure do not choose (cross-fitting, see `dpsweep.study.choice`): each seed but the first is
left out once, the others choose, and the left-out seed measures. A diverged seed is replaced by the mean of
its cell's other seeds, because a rare crash is no evidence about its side.

A bias remains: noise selects a reference that is not quite the best, and replacing it looks like a gain.
The bias is estimated by the parametric bootstrap (Efron and Tibshirani 1993, section 10) and subtracted. The
bootstrap takes the means of the cells as the truth and adds noise of the measured size many times. The bias
is the mean effect of these simulated trials minus the effect of the means without noise.

**Verdicts.** Two means, each with an interval, answer two questions:

- *Here*: does the rule hold for these problems? The units are the problems, or the compared pairs of
  problems. A unit's effect is the mean over its comparisons (for example at several epsilons), which share
  data, network and test set. All units have equal weight. Each group of datasets has its own variance (Welch
  1947), with Satterthwaite's (1946) degrees of freedom; groups with one unit are merged. The error is at
  least the error from the test set alone (`variance_of_test_set`).
- *Other datasets*: would it hold on another dataset? The units are the datasets, with one number each.
  Datasets that share examples, or that are compared with each other, count as one. The error is at least
  that from the test set, as above.

All intervals of a table hold at the same time with 95 % (Bonferroni). So all verdicts of the table are right
at the same time with at least that probability:

- *supported*: the whole interval is above the margin (the smallest relevant effect: half a point, or a tenth
  of a point per halving), and above the standard error of the reference cells; and most units are above the
  margin, so that no single unit decides the verdict;
- *contradicted*: the whole interval is below minus the larger of these two, and most units are below minus
  the margin;
- *no difference*: the whole interval is within the margin, and so are most units;
- *not resolved*: anything else.

docs/statistics.md compares this effect with others, and shows by simulation how often intervals and verdicts
are right.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.cluster.hierarchy import DisjointSet
from scipy.stats import t as student

from dpsweep.analysis import statistics
from dpsweep.analysis.statistics import AccuracyGrid, Array, Axis, Condition
from dpsweep.study.cells import number

Side = Literal["larger", "smaller"]
Cells = tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]
"""Positions of B and of C."""
SYMBOL: dict[Axis, str] = {"batch_size": "B", "clipping_bound": "C"}
DRAWS, FEWEST_DRAWS = 200, 4
"""Bootstrap draws for one study, and the fewest for each of many simulated studies: noise averages out."""


@dataclass(frozen=True)
class Comparison:
    """The measured effect of a rule in one series of grids.

    Attributes:
        grids: the grids that are compared, from the easiest condition to the hardest.
        unit: the problem, or pair of problems, that is compared; the same for all epsilons and epochs.
        found: the chosen values of each grid, as text.
        effect: in the rule's unit, positive if it agrees with the rule; shape (...) of the grids. NaN if it
            is not known: a single seed, or the same accuracy in every trial.
        noise: the standard error of a cell's accuracy under the easiest condition, from seeds and test set,
            in the rule's unit. A reference with such an error looks like a gain of that size; same shape.
        test_error: the standard error of the effect from the test set alone (`variance_of_test_set`);
            same shape.
        reference_at: the end of the grid at which the easiest condition's best value lies, or "". The
            true best value may lie beyond it, where no value was tried.
    """

    grids: Sequence[AccuracyGrid]
    unit: tuple[str, ...]
    found: Sequence[str]
    effect: Array
    noise: Array
    test_error: Array
    reference_at: str = ""

    @property
    def row(self) -> dict[str, object]:
        """The row of a table: every condition (all its values, if they differ), found, effect."""
        conditions = {
            name: ", ".join(dict.fromkeys(_value_text(getattr(grid, name)) for grid in self.grids))
            for name in statistics.CONDITIONS
        }
        return conditions | {
            "found": ", ".join(self.found),
            "reference_at": self.reference_at,
            "seeds": min(grid.seeds for grid in self.grids),
            "effect": float(self.effect),
        }


@dataclass(frozen=True)
class Rule:
    """One claim of the paper's table. Two lines that state a claim in both directions are one rule.

    Attributes:
        key: its name in files.
        condition: the change that makes tuning harder, as text.
        implication: the advice for it.
        effect: the measured quantity, as text.
        unit: of the effect.
        margin: the smallest relevant effect, in its unit.
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
        """The plural name of its units."""
        return "pairs of problems" if self.changes in ("dataset", "backbone") else "problems"

    def compare(
        self, grids: Sequence[AccuracyGrid], corrected: bool = True
    ) -> Iterator[Comparison]:
        """Yield all comparisons that the grids of a study allow. Two comparisons never share a trial.

        With several values of epsilon, or numbers of epochs, the easiest one is compared with all others,
        and the effect is the slope through zero: points per halving. With several datasets or backbones,
        the easiest and the hardest one, by their best accuracy, are compared.

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
        for group in statistics.alike(grids, self.changes):
            series = statistics.with_common(group, self.axis)
            if len(series) > 1:
                yield self._comparison(_from_easy_to_hard(series, self.changes), random)

    def gain(self, series: Sequence[AccuracyGrid]) -> Array:
        """Return the measured gain of following the rule, not bias-corrected, in the rule's unit.

        Args:
            series: grids from the easiest condition to the hardest; one for the rule about joint tuning.
        """
        if self.changes is None:
            return gain_of_joint_tuning(series[0])
        gains = [gain_of_adapting(series[0], grid, self.axis, self.side) for grid in series[1:]]
        gain: Array = np.tensordot(slope_weights(self._distances(series)), gains, axes=1)
        return gain

    def _distances(self, series: Sequence[AccuracyGrid]) -> Array:
        """Return the distances of the harder conditions from the easiest one, in the unit of the effect."""
        if self.changes not in ("epsilon", "epochs"):
            return np.ones(1)
        values = [getattr(grid, self.changes) for grid in series]
        distances: Array = np.log2(values[0] / np.array(values[1:]))
        return distances

    def _comparison(
        self, series: Sequence[AccuracyGrid], random: np.random.Generator | None
    ) -> Comparison:
        easiest = series[0]
        unit = [
            getattr(easiest, name)
            for name in ("dataset", "backbone", "method", "optimizer")
            if name != self.changes
        ]
        effect = self.gain(series)
        if easiest.constant or all(grid.constant for grid in series[1:] or series):
            effect = np.full_like(effect, np.nan)  # the comparison says nothing
        elif random is not None:
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
    gain: Callable[[Sequence[AccuracyGrid]], Array],
    series: Sequence[AccuracyGrid],
    random: np.random.Generator,
    rates: bool,
) -> Array:
    """Estimate the bias of a gain from noise alone; see the module.

    Args:
        gain: function of the grids of a comparison.
        series: the measured grids.
        random: source of randomness.
        rates: whether the gain depends on the learning rates.

    Returns:
        Shape (...) of the grids, in the unit of the gain. NaN with a single seed.
    """
    studies = int(np.prod(series[0].accuracy.shape[:-3]))
    draws = max(FEWEST_DRAWS, DRAWS // studies)
    moved: Array = gain([redrawn(grid, draws, random, rates) for grid in series]).mean(axis=0)
    return moved - gain([without_noise(grid) for grid in series])


def without_noise(grid: AccuracyGrid) -> AccuracyGrid:
    """Return a grid of two seeds that both have the mean of their cell; ``tuning`` stays as measured."""
    selection, accuracy = (
        np.broadcast_to(_mean(each)[..., np.newaxis], (*each.shape[:-1], 2))
        for each in (grid.selection, grid.accuracy)
    )
    return replace(grid, selection=selection, accuracy=accuracy)


def redrawn(
    grid: AccuracyGrid, draws: int, random: np.random.Generator, rates: bool
) -> AccuracyGrid:
    """Return a grid with new noise of the measured size around the means of its cells.

    Args:
        grid: arrays of shape (..., B, C, seeds).
        draws: length of the new leading axis.
        random: source of randomness.
        rates: whether ``tuning`` gets new noise as well; otherwise it stays without the leading axis.
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
    """Return the mean of every cell over all seeds but the first (which tuned it), or its only seed."""
    values = statistics.without_diverged(values)
    return values[..., 1:].mean(axis=-1) if values.shape[-1] > 1 else values[..., 0]


def slope_weights(distances: Array) -> Array:
    """Return weights: the weighted sum of values at the distances is the least-squares slope through 0."""
    weights: Array = distances / (distances @ distances)
    return weights


def gain_of_adapting(easier: AccuracyGrid, harder: AccuracyGrid, axis: Axis, side: Side) -> Array:
    """Return the gain of moving a setting to one side instead of the other; see the module.

    Args:
        easier: the grid that the reference is chosen from.
        harder: the grid in which the setting is tuned again; it has the same values of the axis.
        axis: the setting.
        side: the side that counts as positive.

    Returns:
        Percentage points, shape (...). NaN with a single seed, because none remains to measure.
    """
    if harder.seeds == 1:
        return np.full(harder.accuracy.shape[:-3], np.nan)
    likely, measured = _likely_best(easier, axis), statistics.without_diverged(harder.accuracy)
    differences = []
    for seed in range(1, harder.seeds):
        smaller, larger = _tuned_on_both_sides(harder, seed, axis)
        differences.append(
            statistics.at_each(measured[..., seed], *larger)
            - statistics.at_each(measured[..., seed], *smaller)
        )
    gain: Array = 100 * (likely * np.mean(differences, axis=0)).sum(axis=-1)
    return gain if side == "larger" else -gain


def variance_of_test_set(easier: AccuracyGrid, harder: AccuracyGrid, axis: Axis) -> Array:
    """Return an upper bound on the variance of a `gain_of_adapting` from the test set; squared points.

    If two networks of accuracy p err independently on n test examples, the difference of their accuracies
    has variance 2 p (1 - p) / n (`share_error`). It is smaller for similar networks, and 0 within a cell.
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


def _tuned_on_both_sides(grid: AccuracyGrid, left_out: int, axis: Axis) -> tuple[Cells, Cells]:
    """Return the cells (B, C) that all seeds but one choose on each side of every value of an axis.

    Returns:
        The choice among values up to this one, and the choice among values from this one on, each as
        positions of B and of C with shape (..., values). Ties go to the smallest value.
    """
    seen = statistics.mean_without(grid.selection, left_out)
    if axis == "batch_size":
        seen = np.swapaxes(seen, -1, -2)
    other, profile = seen.argmax(axis=-2), seen.max(axis=-2)
    places = np.arange(profile.shape[-1])
    # A value is the choice on its left if all smaller ones are worse, on its right if none is better.
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


def standard_error(grid: AccuracyGrid) -> Array:
    """Return the standard error of a cell's mean selection accuracy over seeds, pooled over cells.

    Returns:
        Shape (...). NaN with a single seed.
    """
    error: Array = _scatter(grid.selection) / np.sqrt(grid.seeds)
    return error


def error_of_test_set(grid: AccuracyGrid) -> Array:
    """Return the standard error of the best accuracy from the test set alone (`share_error`); shape (...)."""
    return statistics.share_error(
        grid.selection.mean(axis=-1).max(axis=(-2, -1)).clip(0, 1), grid.test_size
    )


def _scatter(values: Array) -> Array:
    """Return the pooled standard deviation of seeds (`pooled_variance`); NaN with a single seed."""
    if values.shape[-1] == 1:
        return np.full(values.shape[:-3], np.nan)
    scatter: Array = np.sqrt(statistics.pooled_variance(values)[0])
    return scatter


def _likely_best(grid: AccuracyGrid, axis: Axis) -> Array:
    """Return weights of the values of an axis by their likelihood to be the best, shape (..., values).

    The weight is proportional to exp(accuracy / standard error). The accuracy is the highest mean over seeds
    at this value. The standard error of such a mean is pooled over the cells of the grid.
    """
    mean = grid.selection.mean(axis=-1)
    profile = mean.max(axis=-1 if axis == "batch_size" else -2)
    error = np.maximum(standard_error(grid), 1e-9)[..., np.newaxis]
    weights: Array = np.exp((profile - profile.max(axis=-1, keepdims=True)) / error)
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights


def gain_of_joint_tuning(grid: AccuracyGrid) -> Array:
    """Return the gain of tuning C, B and the learning rate jointly over tuning one after the other.

    One after the other means: the learning rate at the middle B and C, then C at this rate, then B with both,
    then the learning rate again. The first seed makes all choices; the other seeds measure.

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
    jointly = statistics.best(tuning.max(axis=-1))
    measured = grid.accuracy[..., 1:].mean(axis=-1)
    gain: Array = 100 * (statistics.at(measured, *jointly) - statistics.at(measured, *one_by_one))
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


def _from_easy_to_hard(series: Sequence[AccuracyGrid], condition: Condition) -> list[AccuracyGrid]:
    if condition in ("epsilon", "epochs"):
        return sorted(series, key=lambda grid: getattr(grid, condition), reverse=True)
    ranked = sorted(series, key=lambda grid: grid.reached, reverse=True)
    return [ranked[0], ranked[-1]]


def _chosen(grid: AccuracyGrid, axis: Axis) -> float:
    """Return the chosen value (of the first study, if the grid has many simulated ones)."""
    position = grid.choice()[0 if axis == "batch_size" else 1]
    value: float = getattr(grid, axis)[np.ravel(position)[0]]
    return value


def _value_text(value: object) -> str:
    return value if isinstance(value, str) else number(float(str(value)))


FEWEST_UNITS = 4
"""The fewest problems, or pairs of problems, for a verdict on this study."""
FEWEST_DATASETS = 3
"""The fewest separate datasets for a verdict on other datasets."""
POWER = 0.8
"""Probability of detecting the smallest visible effect."""
NOT_RESOLVED = "not resolved"
COLUMNS = ["rule", *statistics.CONDITIONS, "found", "reference_at", "seeds", "effect", "unit"]
Strings = npt.NDArray[np.str_]


@dataclass(frozen=True)
class Mean:
    """A mean effect and its standard error; arrays of one shape, or numbers."""

    effect: Array
    error: Array
    degrees: Array
    """Degrees of freedom of the error."""
    units: Array
    """The effects of the units, shape (..., units)."""

    def interval(self, level: float) -> tuple[Array, Array]:
        """Return the t interval that misses the effect with probability ``level``.

        NaN if the error is 0: units that agree exactly do not tell how far they scatter.
        """
        error = np.where(self.error > statistics.ROUNDING, self.error, np.nan)
        reach = student.ppf(1 - level / 2, self.degrees) * error
        return self.effect - reach, self.effect + reach

    def smallest_visible(self, threshold: float | Array, level: float) -> Array:
        """Return the true effect whose interval lies above the threshold with probability `POWER`."""
        quantiles = student.ppf(1 - level / 2, self.degrees) + student.ppf(POWER, self.degrees)
        visible: Array = threshold + quantiles * self.error
        return visible

    def verdict(self, margin: float, threshold: float | Array, level: float) -> Strings:
        """Return the verdict that the interval and the units give on the rule.

        Args:
            margin: the smallest relevant effect.
            threshold: the effect above which a rule is supported, at least the margin.
            level: probability that the interval misses the effect.
        """
        lower, upper = self.interval(level)
        above, below = ((sign * self.units > margin).sum(axis=-1) for sign in (1, -1))
        most = self.units.shape[-1] / 2
        verdicts: Strings = np.select(
            [
                (lower > threshold) & (above > most),
                (upper < -threshold) & (below > most),
                (lower > -margin)
                & (upper < margin)
                & (self.units.shape[-1] - above - below > most),
            ],
            ["supported", "contradicted", "no difference"],
            NOT_RESOLVED,
        )
        return verdicts


def mean_here(effects: Array, groups: Sequence[int], test_errors: Array | float = 0.0) -> Mean:
    """Return the mean over units; each group of datasets has its own variance.

    >>> mean = mean_here(np.array([0.9, 1.0, 1.2, 1.1]), groups=[0, 0, 1, 1])
    >>> [round(float(end), 2) for end in mean.interval(0.05)]
    [0.9, 1.2]

    Args:
        effects: shape (..., units), two or more; their noise is independent.
        groups: the group of datasets of every unit: 0, 1, ...
        test_errors: the standard errors from the test set alone, same shape as the effects. The variance
            between units includes them, but with few units it may be too small by chance.
    """
    units = _strata(groups)
    sizes = np.array([len(unit) for unit in units])
    variances = np.stack([effects[..., unit].var(axis=-1, ddof=1) for unit in units])
    totals = (sizes * variances.T).T
    total, squares = totals.sum(axis=0), np.tensordot(1 / (sizes - 1), totals**2, axes=1)
    # If all units agree exactly, the variance is 0.
    degrees = np.where(squares > 0, total**2 / np.where(squares > 0, squares, 1), len(groups) - 1)
    least = np.broadcast_to(np.square(test_errors), effects.shape).sum(axis=-1)
    error = np.sqrt(np.maximum(total, least)) / len(groups)
    return Mean(effects.mean(axis=-1), error, degrees, effects)


def _strata(groups: Sequence[int]) -> list[npt.NDArray[np.intp]]:
    """Return the units of each group; groups with a single unit are merged."""
    members = [np.flatnonzero(np.array(groups) == group) for group in sorted(set(groups))]
    alone = [each for each in members if len(each) == 1]
    several = sorted((each for each in members if len(each) > 1), key=len)
    if len(alone) == 1 and several:
        several[0] = np.concatenate([several[0], *alone])
    elif alone:
        several.append(np.concatenate(alone))
    return several


def mean_elsewhere(effects: Array, groups: Sequence[int], test_errors: Array | float = 0.0) -> Mean:
    """Return the mean over datasets of the mean over their units, with datasets as units.

    Args:
        effects: shape (..., units).
        groups: the group of datasets of every unit: 0, 1, ...; two groups or more.
        test_errors: as for `mean_here`.
    """
    means = _means_of_groups(effects, groups)
    sizes = np.unique(groups, return_counts=True)[1]
    squares = np.broadcast_to(np.square(test_errors), effects.shape)
    least = (_means_of_groups(squares, groups).T / sizes).T.sum(axis=0)
    spread = len(means) * means.var(axis=0, ddof=1)
    error = np.sqrt(np.maximum(spread, least)) / len(means)
    degrees = np.full(error.shape, len(means) - 1.0)
    return Mean(means.mean(axis=0), error, degrees, np.moveaxis(means, 0, -1))


def _means_of_groups(effects: Array, groups: Sequence[int]) -> Array:
    """Return the mean effect in each group, shape (groups, ...)."""
    members = [np.array(groups) == group for group in sorted(set(groups))]
    return np.stack([effects[..., own].mean(axis=-1) for own in members])


@dataclass(frozen=True)
class Evidence:
    """The evidence of a study on one rule; see the module.

    Attributes:
        rule: the rule.
        comparisons: those with an effect.
        groups: the group of datasets of each unit: a problem, or a pair of problems.
        units: the mean effect of each unit, shape (..., units).
        effect: the mean effect, shape (...), also without an interval; NaN without comparisons.
        here: the mean effect over units; None if there are too few units for an interval.
        elsewhere: the same with datasets as units.
    """

    rule: Rule
    comparisons: Sequence[Comparison]
    groups: Sequence[int]
    units: Array
    effect: Array
    here: Mean | None
    elsewhere: Mean | None

    @classmethod
    def of(
        cls, rule: Rule, comparisons: Iterable[Comparison], related: Iterable[tuple[str, str]]
    ) -> "Evidence":
        """Return the evidence from comparisons; ``related`` are pairs of datasets that share examples."""
        known = [each for each in comparisons if not np.isnan(each.effect).any()]
        if not known:
            return cls(rule, [], [], np.empty(0), np.array(np.nan), None, None)
        members: dict[tuple[str, ...], list[Comparison]] = {}
        for each in known:
            members.setdefault(each.unit, []).append(each)
        datasets = [
            [grid.dataset for each in own for grid in each.grids] for own in members.values()
        ]
        groups = groups_of_datasets(datasets, related)
        effects, errors = (
            np.stack(
                [
                    np.mean([getattr(each, name) for each in own], axis=0)
                    for own in members.values()
                ],
                axis=-1,
            )
            for name in ("effect", "test_error")
        )
        enough = len(members) >= FEWEST_UNITS
        many = enough and len(set(groups)) >= FEWEST_DATASETS
        here = mean_here(effects, groups, errors) if enough else None
        elsewhere = mean_elsewhere(effects, groups, errors) if many else None
        effect = _means_of_groups(effects, groups).mean(axis=0) if here is None else here.effect
        return cls(rule, known, groups, effects, effect, here, elsewhere)

    @property
    def threshold(self) -> Array:
        """The effect above which the rule is supported: the larger one of its margin and the noise."""
        noise = [each.noise for each in self.comparisons]
        threshold: Array = np.maximum(self.rule.margin, np.mean(noise, axis=0) if noise else 0.0)
        return threshold

    @property
    def needs(self) -> tuple[str, str]:
        """The missing evidence, and the verdict that lacks it: on "other datasets", or any verdict ("")."""
        units, datasets = len(self.groups), len(set(self.groups))
        if units < FEWEST_UNITS:
            return f"{units} of {FEWEST_UNITS} {self.rule.unit_name}", ""
        if datasets < FEWEST_DATASETS:
            return f"{datasets} of {FEWEST_DATASETS} separate datasets", "other datasets"
        return "", ""

    def verdict(self, level: float) -> Strings:
        """Return the verdicts, shape (...). A verdict on this study only ends with "here"."""
        shape = np.shape(self.comparisons[0].effect) if self.comparisons else ()
        verdicts = np.full(shape, NOT_RESOLVED, dtype="U32")
        for mean, ending in ((self.here, " here"), (self.elsewhere, "")):
            if mean is not None:
                found = mean.verdict(self.rule.margin, self.threshold, level)
                decided = np.char.add(found, ending)
                verdicts = np.where(found != NOT_RESOLVED, decided, verdicts)
        return verdicts


def gather(
    comparisons: Mapping[str, Sequence[Comparison]], related: Iterable[tuple[str, str]] = ()
) -> tuple[list[Evidence], float]:
    """Return the evidence on every rule, and the level of each interval (Bonferroni).

    Args:
        comparisons: from `compare`.
        related: pairs of datasets that share examples.
    """
    pairs = list(related)
    found = [Evidence.of(rule, comparisons.get(rule.key, []), pairs) for rule in RULES]
    intervals = sum(mean is not None for each in found for mean in (each.here, each.elsewhere))
    return found, statistics.LEVEL / max(intervals, 1)


def compare(grids: Sequence[AccuracyGrid], corrected: bool = True) -> dict[str, list[Comparison]]:
    """Return every comparison that the grids allow, by the key of the rule.

    Args:
        grids: of a study.
        corrected: whether the bias of gains is subtracted (see `dpsweep.analysis.evidence`).
    """
    return {rule.key: list(rule.compare(grids, corrected)) for rule in RULES}


def comparison_table(comparisons: Mapping[str, Sequence[Comparison]]) -> pd.DataFrame:
    """Return one row per comparison; an effect is positive if it agrees with the rule.

    Columns: ``rule``, the conditions (all values if they differ within the comparison, from easy to
    hard), ``found`` (in the same order), ``reference_at`` (the end of the grid at which the easiest
    condition's best value lies), ``seeds`` (the fewest), ``effect`` and ``unit``. An effect is NaN
    if a grid has a single seed, or if all of its trials have the same accuracy.
    """
    rows = [
        {"rule": rule.key} | comparison.row | {"unit": rule.unit}
        for rule in RULES
        for comparison in comparisons.get(rule.key, [])
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def evidence_table(
    comparisons: Mapping[str, Sequence[Comparison]], related: Iterable[tuple[str, str]] = ()
) -> pd.DataFrame:
    """Return one row per rule: effect, intervals, smallest visible effects, counts, verdict.

    ``in_favour`` and ``against`` count the ``units`` that are beyond the margin.

    Args:
        comparisons: from `compare`.
        related: pairs of datasets that share examples.
    """
    found, level = gather(comparisons, related)
    return pd.DataFrame([_row(each, level) for each in found])


def _row(evidence: Evidence, level: float) -> dict[str, object]:
    rule, units = evidence.rule, evidence.units
    row: dict[str, object] = {
        "rule": rule.key,
        "condition": rule.condition,
        "implication": rule.implication,
        "effect_measured": rule.effect,
        "unit": rule.unit,
        "margin": rule.margin,
        "threshold": float(evidence.threshold),
        "effect": float(evidence.effect),
    }
    for scope, mean in (("here", evidence.here), ("elsewhere", evidence.elsewhere)):
        numbers: tuple[float, ...] = (np.nan,) * 3
        if mean is not None:
            visible = mean.smallest_visible(evidence.threshold, level)
            numbers = tuple(map(float, (*mean.interval(level), visible)))
        names = ("lower", "upper", "smallest_visible")
        row |= {f"{name}_{scope}": value for name, value in zip(names, numbers, strict=True)}
    needs, needed_for = evidence.needs
    return row | {
        "comparisons": len(evidence.comparisons),
        "units": len(units),
        "in_favour": int((units > rule.margin).sum()),
        "against": int((units < -rule.margin).sum()),
        "at_an_end": sum(bool(each.reference_at) for each in evidence.comparisons),
        "groups_of_datasets": len(set(evidence.groups)),
        "needs": needs,
        "needed_for": needed_for,
        "verdict": str(evidence.verdict(level)),
    }


def groups_of_datasets(
    compared: Sequence[Sequence[str]], related: Iterable[tuple[str, str]]
) -> list[int]:
    """Return the group of every comparison: 0, 1, ... in order of appearance.

    Comparisons are in different groups only if nothing links their datasets.

    Args:
        compared: the datasets of every comparison.
        related: pairs of datasets that share examples.
    """
    known = DisjointSet(name for names in compared for name in names)
    links = [(names[0], name) for names in compared for name in names[1:]]
    links += [pair for pair in related if pair[0] in known and pair[1] in known]
    for one, other in links:
        known.merge(one, other)
    numbers: dict[str, int] = {}
    return [numbers.setdefault(known[names[0]], len(numbers)) for names in compared]
