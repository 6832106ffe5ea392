"""From comparisons to a verdict: mean effect, two intervals, and a correction for nine rules.

The effect of a rule is the mean over datasets of the mean over a dataset's comparisons, so that a dataset
that was swept more does not count for more. Two intervals answer two questions:

- *Here*: does the rule hold for what this study compares? The comparisons are the units. They share
  no trial, so their noise is independent; how far those of one dataset lie apart says how large it is.
  Where they also differ for other reasons, that counts as noise, and the interval is too wide
  rather than too narrow.
- *Other datasets*: would it hold on another dataset? The datasets are the units, a single number each.
  Those that share examples count as one, as do those that a comparison has side by side.

Both are t intervals of means over units. Nothing is resampled: a bootstrap of seeds adds noise to accuracies
before an optimum is looked for, which moves the optimum itself. docs/statistics.md has the coverage of both,
of what else was tried, and the power that studies of several sizes have.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.cluster.hierarchy import DisjointSet
from scipy.stats import t as student

from dpsweep.analysis.grids import CONDITIONS, Grid
from dpsweep.analysis.rules import RULES, Rule

Array = npt.NDArray[np.float64]
Verdict = Literal[
    "supported", "supported here", "not resolved", "contradicted here", "contradicted"
]

FEWEST_COMPARISONS = 6
"""With fewer there is no verdict: even unanimous signs are no evidence then (2 / 2^5 > 0.05)."""
FEWEST_DATASETS = 3
"""With fewer there is no verdict on other datasets."""
COLUMNS = ["rule", *CONDITIONS, "found", "seeds", "effect", "unit"]
LEVEL = 0.05
"""Probability of an error, for an interval, and for all verdicts together."""


class Interval(NamedTuple):
    """Bounds of a 95% interval and the two-sided p-value of no effect; arrays or numbers."""

    lower: Array
    upper: Array
    p_value: Array


def mean_effect(effects: Array, groups: Sequence[int]) -> Array:
    """Mean over groups of the mean over a group's comparisons.

    Args:
        effects: shape (..., comparisons).
        groups: the group of every comparison: 0, 1, ...

    Returns:
        Shape (...).
    """
    mean: Array = _group_means(effects, groups).mean(axis=-1)
    return mean


def interval_here(effects: Array, groups: Sequence[int]) -> Interval:
    """Interval for the mean effect, comparisons being the units: their spread within groups, pooled.

    Args:
        effects: shape (..., comparisons); their noise is independent.
        groups: the group of every comparison: 0, 1, ...

    Returns:
        NaN where no group has two comparisons.
    """
    counts = np.bincount(groups)
    degrees = len(groups) - len(counts)
    residuals = effects - _group_means(effects, groups)[..., list(groups)]
    variance = _divide((residuals**2).sum(axis=-1), degrees)
    error = np.sqrt(variance * (1 / counts).sum()) / len(counts)
    return _t_interval(mean_effect(effects, groups), error, degrees)


def interval_elsewhere(effects: Array, groups: Sequence[int]) -> Interval:
    """Interval for the mean effect on other datasets, groups being the units.

    Args:
        effects: shape (..., comparisons).
        groups: the group of datasets of every comparison: 0, 1, ...

    Returns:
        NaN with a single group.
    """
    means = _group_means(effects, groups)
    count = means.shape[-1]
    variance = _divide(((means - means.mean(axis=-1, keepdims=True)) ** 2).sum(axis=-1), count - 1)
    return _t_interval(means.mean(axis=-1), np.sqrt(variance / count), count - 1)


def holm(p_values: Array) -> Array:
    """P-values corrected for their number by Holm's method (1979); NaN stays, and does not count.

    Args:
        p_values: shape (tests,).
    """
    corrected = np.full(p_values.shape, np.nan)
    tests = np.flatnonzero(~np.isnan(p_values))
    order = tests[np.argsort(p_values[tests], kind="stable")]
    factors = np.arange(len(order), 0, -1)
    corrected[order] = np.minimum(np.maximum.accumulate(p_values[order] * factors), 1)
    return corrected


def compare(grids: Sequence[Grid]) -> pd.DataFrame:
    """Every comparison of every rule, one row each; effects are positive as the rule says.

    Columns: ``rule``, the conditions (all values where they differ within the comparison), ``found``
    (in the same order), ``seeds`` (the fewest), ``effect`` and ``unit``. An effect is NaN where
    accuracies are missing, or where a gain has a single seed.
    """
    rows = [
        {"rule": rule.key} | comparison.row | {"unit": rule.unit}
        for rule in RULES
        for comparison in rule.compare(grids)
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def evidence(comparisons: pd.DataFrame, related: Iterable[tuple[str, str]] = ()) -> pd.DataFrame:
    """One row per rule: effect, intervals, p-values as they are and corrected, counts, verdict.

    Args:
        comparisons: from `compare`.
        related: pairs of datasets that share examples.
    """
    rows = [_summary(rule, comparisons, list(related)) for rule in RULES]
    found = pd.DataFrame(rows)
    for scope in ("here", "elsewhere"):
        found[f"corrected_p_{scope}"] = holm(found[f"p_{scope}"].to_numpy())
    said = found[["effect", "corrected_p_here", "corrected_p_elsewhere"]].to_numpy(dtype=float)
    found["verdict"] = [verdict(*row) for row in said]
    return found


def verdict(effect: float, p_here: float, p_elsewhere: float) -> Verdict:
    """What an effect, positive as the rule says, and its corrected p-values say about the rule."""
    if p_elsewhere < LEVEL:
        return "supported" if effect > 0 else "contradicted"
    if p_here < LEVEL:
        return "supported here" if effect > 0 else "contradicted here"
    return "not resolved"


def _summary(
    rule: Rule, comparisons: pd.DataFrame, related: Sequence[tuple[str, str]]
) -> dict[str, object]:
    mine = comparisons[(comparisons["rule"] == rule.key) & comparisons["effect"].notna()]
    effects = mine["effect"].to_numpy(dtype=np.float64)
    groups = groups_of_datasets([str(names).split(", ") for names in mine["dataset"]], related)
    count, group_count = len(effects), len(set(groups))
    nothing = Interval(*np.full((3, 1), np.nan))
    here = interval_here(effects, groups) if count >= FEWEST_COMPARISONS else nothing
    enough = count >= FEWEST_COMPARISONS and group_count >= FEWEST_DATASETS
    elsewhere = interval_elsewhere(effects, groups) if enough else nothing
    return {
        "rule": rule.key,
        "condition": rule.condition,
        "implication": rule.implication,
        "effect_measured": rule.effect,
        "unit": rule.unit,
        "effect": float(mean_effect(effects, groups)) if count else np.nan,
        "lower_here": here.lower.item(),
        "upper_here": here.upper.item(),
        "p_here": here.p_value.item(),
        "lower_elsewhere": elsewhere.lower.item(),
        "upper_elsewhere": elsewhere.upper.item(),
        "p_elsewhere": elsewhere.p_value.item(),
        "comparisons": count,
        "in_favour": int((effects > 0).sum()),
        "against": int((effects < 0).sum()),
        "groups_of_datasets": group_count,
    }


def groups_of_datasets(
    compared: Sequence[Sequence[str]], related: Iterable[tuple[str, str]]
) -> list[int]:
    """The group of every comparison: 0, 1, ... in order of appearance.

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


def _group_means(effects: Array, groups: Sequence[int]) -> Array:
    members = np.asarray(groups)[:, np.newaxis] == np.arange(max(groups) + 1)
    means: Array = effects @ (members / members.sum(axis=0))
    return means


def _t_interval(centre: Array, error: Array, degrees: int) -> Interval:
    if degrees < 1:
        unknown = np.full(np.shape(centre), np.nan)
        return Interval(unknown, unknown, unknown)
    reach = student.ppf(1 - LEVEL / 2, degrees) * error
    # Comparisons that agree exactly leave no error: then any effect but none is one.
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(centre == 0, 0.0, np.abs(centre) / error)
    return Interval(centre - reach, centre + reach, 2 * student.sf(ratio, degrees))


def _divide(total: Array, degrees: int) -> Array:
    return total / degrees if degrees else np.full(np.shape(total), np.nan)
