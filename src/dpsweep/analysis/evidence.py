"""From comparisons to verdicts: mean effects, intervals that hold together, and what they exclude.

Two means, each with an interval, answer two questions:

- *Here*: does the rule hold for these problems? The units are the problems, or the pairs of problems that are
  compared, each with the mean over its comparisons (at several epsilons, say): those share data, network and
  test set. Each unit counts the same. Each group of datasets has a variance of its own (Welch 1947), with
  Satterthwaite's (1946) degrees of freedom; groups with one unit are put together. The error is at least what
  the test set alone makes of it (`dpsweep.analysis.rules.variance_of_test_set`).
- *Other datasets*: would it hold on another dataset? The datasets are the units, a single number each.
  Those that share examples count as one, as do those that a comparison has side by side.

All intervals of a table hold together with 95 % (Bonferroni). So every verdict that is read off them is
right at the same time with at least that probability:

- *supported*: the whole interval is above the margin, the smallest effect worth speaking of (half a point,
  or a tenth of a point per halving), and above the standard error of the cells that are the reference; and
  most units are above the margin, so that no single one carries the verdict;
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

from dpsweep.analysis.grids import CONDITIONS, Array, Grid
from dpsweep.analysis.rules import RULES, Comparison, Rule

FEWEST_UNITS = 4
"""With fewer problems, or pairs of problems, there is no verdict about this study."""
FEWEST_DATASETS = 3
"""With fewer there is no verdict about other datasets."""
LEVEL = 0.05
"""Probability that any interval of a table misses its effect."""
POWER = 0.8
"""Probability with which the smallest visible effect is found."""
NOT_RESOLVED = "not resolved"
COLUMNS = ["rule", *CONDITIONS, "found", "reference_at", "seeds", "effect", "unit"]
Strings = npt.NDArray[np.str_]


@dataclass(frozen=True)
class Mean:
    """A mean effect and its standard error; arrays of one shape, or numbers."""

    effect: Array
    error: Array
    degrees: Array
    """of freedom of the error"""
    units: Array
    """the effects that it is the mean of, shape (..., units)"""

    def interval(self, level: float) -> tuple[Array, Array]:
        """Return the t interval that misses the effect with probability ``level``."""
        reach = student.ppf(1 - level / 2, self.degrees) * self.error
        return self.effect - reach, self.effect + reach

    def smallest_visible(self, threshold: float | Array, level: float) -> Array:
        """Return the true effect whose interval lies above the threshold with probability `POWER`."""
        quantiles = student.ppf(1 - level / 2, self.degrees) + student.ppf(POWER, self.degrees)
        visible: Array = threshold + quantiles * self.error
        return visible

    def verdict(self, margin: float, threshold: float | Array, level: float) -> Strings:
        """Return what the interval says of the rule.

        Args:
            margin: the smallest effect worth speaking of.
            threshold: the effect above which a rule is supported, at least the margin.
            level: probability that the interval misses the effect.
        """
        lower, upper = self.interval(level)
        above, below = ((sign * self.units > margin).sum(axis=-1) for sign in (1, -1))
        most = self.units.shape[-1] / 2
        said: Strings = np.select(
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
        return said


def mean_here(
    effects: Array, groups: Sequence[int], test_errors: Array | float = 0.0
) -> Mean | None:
    """Return the mean over units; each group of datasets has its own variance.

    >>> mean = mean_here(np.array([0.9, 1.0, 1.2, 1.1]), groups=[0, 0, 1, 1])
    >>> [round(float(end), 2) for end in mean.interval(0.05)]
    [0.9, 1.2]

    Args:
        effects: shape (..., units); their noise is independent.
        groups: the group of datasets of every unit: 0, 1, ...
        test_errors: the standard errors that come from the test set alone, shape as that of the effects.
            What units differ by has them in it; with few units it may be too little by chance.

    Returns:
        None with fewer than two units.
    """
    units = _strata(groups)
    sizes = np.array([len(unit) for unit in units])
    if sizes.max(initial=0) < 2:
        return None
    variances = np.stack([effects[..., unit].var(axis=-1, ddof=1) for unit in units])
    totals = (sizes * variances.T).T
    total, squares = totals.sum(axis=0), np.tensordot(1 / (sizes - 1), totals**2, axes=1)
    # Units that agree exactly leave no error.
    degrees = np.where(squares > 0, total**2 / np.where(squares > 0, squares, 1), len(groups) - 1)
    least = np.broadcast_to(np.square(test_errors), effects.shape).sum(axis=-1)
    error = np.sqrt(np.maximum(total, least)) / len(groups)
    return Mean(effects.mean(axis=-1), error, degrees, effects)


def _strata(groups: Sequence[int]) -> list[npt.NDArray[np.intp]]:
    """Return the units of each group; those that are alone in theirs are put together."""
    members = [np.flatnonzero(np.array(groups) == group) for group in sorted(set(groups))]
    alone = [each for each in members if len(each) == 1]
    several = sorted((each for each in members if len(each) > 1), key=len)
    if len(alone) == 1 and several:
        several[0] = np.concatenate([several[0], *alone])
    elif alone:
        several.append(np.concatenate(alone))
    return several


def mean_elsewhere(effects: Array, groups: Sequence[int]) -> Mean | None:
    """Return the mean over datasets of the mean over their units, with datasets as units.

    Args:
        effects: shape (..., units).
        groups: the group of datasets of every unit: 0, 1, ...

    Returns:
        None with a single group.
    """
    if len(set(groups)) < 2:
        return None
    means = _means_of_groups(effects, groups)
    error = means.std(axis=0, ddof=1) / np.sqrt(len(means))
    degrees = np.full(error.shape, len(means) - 1.0)
    return Mean(means.mean(axis=0), error, degrees, np.moveaxis(means, 0, -1))


def _means_of_groups(effects: Array, groups: Sequence[int]) -> Array:
    """Return the mean effect in each group, shape (groups, ...)."""
    members = [np.array(groups) == group for group in sorted(set(groups))]
    return np.stack([effects[..., own].mean(axis=-1) for own in members])


@dataclass(frozen=True)
class Evidence:
    """All that a study says of one rule; see the module.

    Attributes:
        rule: the rule.
        comparisons: those with an effect.
        groups: the group of datasets of each unit: a problem, or a pair of problems.
        units: the mean effect of each unit, shape (..., units).
        effect: the mean effect, shape (...), whether it has an interval or not; NaN without comparisons.
        here: the mean effect over units, None where there are too few for an interval.
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
        """Gather the comparisons of a rule; ``related`` are pairs of datasets that share examples."""
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
        effects = np.stack(
            [np.mean([each.effect for each in own], axis=0) for own in members.values()], axis=-1
        )
        errors = np.stack(
            [np.mean([each.test_error for each in own], axis=0) for own in members.values()],
            axis=-1,
        )
        enough = len(members) >= FEWEST_UNITS
        many = enough and len(set(groups)) >= FEWEST_DATASETS
        here = mean_here(effects, groups, errors) if enough else None
        elsewhere = mean_elsewhere(effects, groups) if many else None
        effect = _means_of_groups(effects, groups).mean(axis=0) if here is None else here.effect
        return cls(rule, known, groups, effects, effect, here, elsewhere)

    @property
    def threshold(self) -> Array:
        """The effect above which the rule is supported: its margin, or the noise if that is larger."""
        noise = [each.noise for each in self.comparisons]
        threshold: Array = np.maximum(self.rule.margin, np.mean(noise, axis=0) if noise else 0.0)
        return threshold

    @property
    def needs(self) -> tuple[str, str]:
        """Name what there is too little of for a verdict, and on what the verdict would be ("": any)."""
        units, datasets = len(self.groups), len(set(self.groups))
        if units < FEWEST_UNITS:
            return f"{units} of {FEWEST_UNITS} {self.rule.unit_name}", ""
        if datasets < FEWEST_DATASETS:
            return f"{datasets} of {FEWEST_DATASETS} separate datasets", "other datasets"
        return "", ""

    def verdict(self, level: float) -> Strings:
        """Return the verdicts, shape (...); about this study only they end with "here"."""
        shape = np.shape(self.comparisons[0].effect) if self.comparisons else ()
        said = np.full(shape, NOT_RESOLVED, dtype="U32")
        for mean, ending in ((self.here, " here"), (self.elsewhere, "")):
            if mean is not None:
                found = mean.verdict(self.rule.margin, self.threshold, level)
                said = np.where(found != NOT_RESOLVED, np.char.add(found, ending), said)
        return said


def gather(
    comparisons: Mapping[str, Sequence[Comparison]], related: Iterable[tuple[str, str]] = ()
) -> tuple[list[Evidence], float]:
    """Return the evidence on every rule, and the level of each interval, so that all hold together.

    Args:
        comparisons: from `compare`.
        related: pairs of datasets that share examples.
    """
    pairs = list(related)
    found = [Evidence.of(rule, comparisons.get(rule.key, []), pairs) for rule in RULES]
    intervals = sum(mean is not None for each in found for mean in (each.here, each.elsewhere))
    return found, LEVEL / max(intervals, 1)


def compare(grids: Sequence[Grid], corrected: bool = True) -> dict[str, list[Comparison]]:
    """Return every comparison that the grids allow, by the key of the rule.

    Args:
        grids: of a study.
        corrected: whether the bias of gains is subtracted (see `dpsweep.analysis.rules`).
    """
    return {rule.key: list(rule.compare(grids, corrected)) for rule in RULES}


def comparison_table(comparisons: Mapping[str, Sequence[Comparison]]) -> pd.DataFrame:
    """Return one row per comparison; effects are positive as the rule says.

    Columns: ``rule``, the conditions (all values where they differ within the comparison, from easy to
    hard), ``found`` (in the same order), ``reference_at`` (the end of the grid at which the easiest
    condition's best value lies), ``seeds`` (the fewest), ``effect`` and ``unit``. An effect is NaN
    where a grid has a single seed.
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
