"""Sentences for the head of the report on the costs of C and B that are larger than the scatter of seeds.

A setting is a problem at one epsilon. For each value of C or B all else is tuned, and measured by seeds that
did not choose (`dpsweep.study.choice`). A difference counts as seen if chance makes any difference so large
in at most 5 % of studies (`dpsweep.analysis.scatter`; Bonferroni over the sentences on C, B and the usual
habit, and over the comparisons of each).
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from dpsweep.analysis.scatter import Scatter
from dpsweep.analysis.statistics import LEVEL
from dpsweep.base.units import count
from dpsweep.report.trials import is_private
from dpsweep.report.wording import titles, values
from dpsweep.study import Study
from dpsweep.study.choice import choose, repeats

HABIT: Mapping[str, float] = {"clipping_bound": 1.0, "batch_size": 256}
"""The usual settings in papers and tutorials."""
_BY = ["problem", "epsilon"]
# For each of three kinds of sentences, on one of two sides.
_CHANCE = LEVEL / 3 / 2


def said_of_choices(study: Study, trials: pd.DataFrame) -> list[str]:
    """Return up to five sentences about C, B and the usual habit; none if there are too few seeds.

    Args:
        study: the study.
        trials: a row per trial, as `dpsweep.report.trials.read_trials` reads them.
    """
    # AUTO-S and training without clipping have no C.
    private = trials[is_private(trials)].dropna(subset=["clipping_bound"])
    tuned = repeats(private)
    # The first seed chose the learning rates, so its accuracies are optimistic.
    scatter = Scatter.of(tuned[tuned["seed"] > 1], "macro_accuracy")
    if scatter is None:
        return []
    return [
        *_of_values(study, _costs(private, "clipping_bound"), scatter, "C"),
        *_of_values(study, _costs(private, "batch_size"), scatter, "B"),
        *_of_habit(private, scatter),
    ]


def _costs(trials: pd.DataFrame, axis: str) -> pd.DataFrame:
    """Return a row per setting and value of axis: ``value``, ``reached``, ``best``, ``lost``, ``seeds``."""
    chosen = choose(trials, by=[*_BY, axis]).dropna(subset=["cross_fitted"])
    chosen = chosen.rename(columns={axis: "value", "cross_fitted": "reached"})
    first = chosen.sort_values("selection_accuracy", ascending=False).drop_duplicates(_BY)
    joined = chosen.merge(
        first[[*_BY, "reached", "repeats"]], on=_BY, suffixes=("", "_best")
    ).rename(columns={"reached_best": "best"})
    joined["lost"] = joined["best"] - joined["reached"]
    joined["seeds"] = joined[["repeats", "repeats_best"]].min(axis=1) - 1
    return joined[joined.groupby(_BY)["value"].transform("size") > 1]


def _of_values(study: Study, costs: pd.DataFrame, scatter: Scatter, name: str) -> Iterator[str]:
    if costs.empty:
        return
    settings = len(costs.drop_duplicates(_BY))
    visible = costs["seeds"].map(lambda seeds: scatter.visible(seeds, len(costs), _CHANCE))
    seen = costs["lost"] > visible
    if seen.any():
        worst = costs[seen].nlargest(1, "lost").to_dict("records")[0]
        same = costs["value"] == worst["value"]
        yield (
            f"{name} = {values([worst['value']])} costs up to {100 * worst['lost']:.1f} points "
            f"({', '.join(titles(study, worst['problem']).values())}, ε = {values([worst['epsilon']])}: "
            f"{100 * worst['reached']:.1f} instead of {100 * worst['best']:.1f} %), more than the scatter "
            f"of seeds explains in {(seen & same).sum()} of {count(int(same.sum()), 'setting')}."
        )
    by_value = costs.assign(seen=seen).groupby("value")
    everywhere = by_value["lost"].size() == settings
    alike = list(everywhere.index[everywhere & ~by_value["seen"].any()])
    if len(alike) > 1:
        *others, last = (values([each]) for each in alike)
        yield (
            f"{name} = {', '.join(others)} and {last} cannot be told from the best {name} in any of "
            f"{count(settings, 'setting')}; a difference of {100 * visible.max():.1f} points would have "
            "been seen."
        )


def by_habit(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the trials with the usual C and B."""
    return trials[(trials[list(HABIT)] == pd.Series(HABIT)).all(axis=1)]


def _of_habit(trials: pd.DataFrame, scatter: Scatter) -> Iterator[str]:
    """Yield a sentence on the cost of the usual C and B with tuned learning rate, if it is seen."""
    best, found = (
        choose(rows, by=_BY).dropna(subset=["cross_fitted"]).set_index(_BY)
        for rows in (trials, by_habit(trials))
    )
    lost: pd.Series[Any] = (best["cross_fitted"] - found["cross_fitted"]).dropna()
    if lost.empty:
        return
    seeds = pd.concat([best["repeats"], found["repeats"]], axis=1).loc[lost.index].min(axis=1) - 1
    seen = lost > seeds.map(lambda each: scatter.visible(each, len(lost), _CHANCE))
    if seen.any():
        yield (
            f"The usual C = {HABIT['clipping_bound']:g} with B = {HABIT['batch_size']:g} costs up to "
            f"{100 * lost[seen].max():.1f} points beside C and B that are tuned, more than the scatter of "
            f"seeds explains in {seen.sum()} of {count(len(lost), 'setting')}."
        )
