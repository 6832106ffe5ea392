"""Verdicts on the tuning rules: mean effects, simultaneous intervals, and the decision rule.

Two means, each with an interval, answer two questions:

- *Here*: does the rule hold for these problems? The units are the problems, or the compared pairs of
  problems. A unit's effect is the mean over its comparisons (for example at several epsilons), which share
  data, network and test set. All units have equal weight. Each group of datasets has its own variance (Welch
  1947), with Satterthwaite's (1946) degrees of freedom; groups with one unit are merged. The error is at
  least the error from the test set alone (`dpsweep.analysis.rules.variance_of_test_set`).
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

docs/statistics.md shows by simulation how often intervals and verdicts are right.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.cluster.hierarchy import DisjointSet
from scipy.stats import t as student

from dpsweep.analysis.grids import CONDITIONS, AccuracyGrid, Array
from dpsweep.analysis.rules import RULES, Comparison, Rule
from dpsweep.analysis.statistics import LEVEL, ROUNDING

FEWEST_UNITS = 4
"""The fewest problems, or pairs of problems, for a verdict on this study."""
FEWEST_DATASETS = 3
"""The fewest separate datasets for a verdict on other datasets."""
POWER = 0.8
"""Probability of detecting the smallest visible effect."""
NOT_RESOLVED = "not resolved"
COLUMNS = ["rule", *CONDITIONS, "found", "reference_at", "seeds", "effect", "unit"]
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
        error = np.where(self.error > ROUNDING, self.error, np.nan)
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
    return found, LEVEL / max(intervals, 1)


def compare(grids: Sequence[AccuracyGrid], corrected: bool = True) -> dict[str, list[Comparison]]:
    """Return every comparison that the grids allow, by the key of the rule.

    Args:
        grids: of a study.
        corrected: whether the bias of gains is subtracted (see `dpsweep.analysis.rules`).
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
