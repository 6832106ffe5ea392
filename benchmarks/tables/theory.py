"""The best clipping bound: what privacy makes of it, which rule predicts it, and what computing it needs."""

import itertools
import math
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.common import RESULTS
from benchmarks.tables.markdown import grid, short, where
from dpsweep.analysis.predictions import HINDSIGHT
from dpsweep.analysis.statistics import Estimate, jackknife
from dpsweep.figures.tables.write import read_numbers

THEORY, FILM_THEORY, FASHION_THEORY = (
    RESULTS / folder / "theory" for folder in ("", "film", "fashion")
)
ENDS = ("", "_lower", "_upper")


def theory_effects(
    heads: Path = THEORY, film: Path = FILM_THEORY, fashion: Path = FASHION_THEORY
) -> list[str]:
    """C* after the last epoch, and what noise and gradients alone make of it.

    Args:
        heads: folder with the numbers of the heads on frozen features.
        film: folder of those with FiLM.
        fashion: folder of those on Fashion-MNIST.
    """
    found = [
        _effects(heads, "", "batches"),
        _effects(film, ", FiLM", "batches and trainings"),
        _effects(fashion, "", "batches"),
    ]
    head = ["", "median norm", "C\\*", "of its noise alone", "of its gradients alone"]
    rows = [row for lines, _ in found for row in lines]
    said = [sentence for _, sentences in found for sentence in sentences]
    return [*grid([*head, "scale-free C", "R within 2 %"], rows), "", *said]


def _effects(folder: Path, method: str, over: str) -> tuple[list[list[str]], list[str]]:
    """Rows for the largest and the smallest epsilon of each network of a study, and a sentence on each."""
    traced = read_numbers(folder / "optimal_clipping.csv")
    traced = traced[traced["epoch"] == traced["epochs"]]
    traced = traced.sort_values(["title", "epsilon"], ascending=[True, False])
    effects = read_numbers(folder / "privacy_effects.csv")
    effects = (
        effects[effects["rule"] == "C*"].set_index(["title", "effect", "epsilon"]).sort_index()
    )
    ends = traced[traced["epsilon"].isin([traced["epsilon"].min(), traced["epsilon"].max()])]
    rows = [
        [
            f"{row['title']}{method}, ε = {row['epsilon']:g}",
            short(row["median_norm"]),
            short(row["best_bound"]),
            *(
                short(effects.loc[(row["title"], effect, row["epsilon"]), "best_bound"])
                for effect in ("noise alone", "gradients alone")
            ),
            short(row["direction_bound"]),
            f"{short(row['plateau_lower'])} to {short(row['plateau_upper'])}",
        ]
        for _, row in ends.iterrows()
    ]
    said = [
        f"- {title}{method}, {_effects_said(members.iloc[0], members.iloc[-1], effects.loc[title], over)}"
        for title, members in traced.groupby("title")
    ]
    return rows, said


def _effects_said(loose: pd.Series, tight: pd.Series, effects: pd.DataFrame, over: str) -> str:
    """Effect of noise alone and of gradients alone on C*, between the largest and the smallest epsilon."""
    gradients, noise = (
        effects.loc[effect].drop(loose["epsilon"]) for effect in ("gradients alone", "noise alone")
    )
    grown = (gradients["smallest"] > loose["largest"]).sum()
    fallen = (gradients["largest"] < loose["smallest"]).sum()
    factors = [
        (row["best_bound"] / loose["best_bound"], *_range(row, loose))
        for row in (noise.loc[tight["epsilon"]], gradients.loc[tight["epsilon"]])
    ]
    by_noise, by_gradients = (
        f"{short(x)} ({short(low)} to {short(high)})" for x, low, high in factors
    )
    by_size = [
        sorted(abs(math.log(end)) if end else math.inf for end in ends) for _, *ends in factors
    ]
    return (
        f"from ε = {loose['epsilon']:g} to {tight['epsilon']:g}: the median norm is multiplied by "
        f"{tight['median_norm'] / loose['median_norm']:.2f}. The noise alone multiplies C\\* by {by_noise}, "
        f"the gradients alone by {by_gradients}."
        + (" The noise has the larger effect." if by_size[0][0] > by_size[1][1] else "")
        + _direction(grown, fallen, len(gradients), over)
    )


def _direction(grown: int, fallen: int, smaller: int, over: str) -> str:
    """At how many of the smaller values of epsilon the gradients alone move C* beyond its range."""
    if smaller > 1:
        return (
            f" The paper says that the gradients alone raise C\\*: beyond the range over {over} they do at "
            f"{grown} of the {smaller} smaller ε, and lower it at {fallen}."
        )
    if grown:
        return f" The gradients alone raise C\\* beyond the range over {over}, as the paper says."
    moved = "lower C\\* beyond" if fallen else "leave C\\* within"
    return f" The gradients alone {moved} the range over {over}."


def _range(row: pd.Series, loose: pd.Series) -> tuple[float, float]:
    """The smallest and the largest factor between batches."""
    return row["smallest"] / loose["largest"], row["largest"] / loose["smallest"]


def lost_more(numbers: pd.DataFrame, rule: str, other: str) -> Estimate:
    """How much more accuracy one rule loses than another, in the mean where both are known.

    ``numbers`` are from `dpsweep.analysis.predictions.predicted_bounds`.
    """
    one, two = (numbers[numbers["rule"] == name] for name in (rule, other))
    setting = ["title", "problem", "epsilon", "epochs", "batch_size"]
    pairs = one.merge(two, on=setting, suffixes=("", "_other"))
    return jackknife(pairs, lambda rows: (rows["lost"] - rows["lost_other"]).mean())


def theory_rules(folder: Path = THEORY, film: Path = FILM_THEORY) -> list[str]:
    """Loss of each rule for C, with intervals, and which rules can be told apart.

    Args:
        folder: with the numbers of the heads on frozen features, and of the demo.
        film: folder of those with FiLM.
    """
    files = {
        "heads": folder / "predictions.csv",
        "FiLM": film / "predictions.csv",
        "dense demo": folder / "demo_predictions.csv",
    }
    studies = {name: read_numbers(file) for name, file in files.items()}
    firsts = {
        name: each.drop_duplicates("rule").set_index("rule") for name, each in studies.items()
    }
    rules = list(firsts["heads"].index)
    rows = [
        [
            _escaped(str(rule)),
            *(_interval(each.loc[rule], "mean_lost", 100) for each in firsts.values()),
            *(_interval(each.loc[rule], "rank_correlation") for each in firsts.values()),
        ]
        for rule in rules
    ]
    head = [
        *(f"points lost, {name}" for name in studies),
        *(f"rank correlation, {name}" for name in studies),
    ]
    said = [_rules_said(name, studies[name], firsts[name]) for name in studies]
    return [*grid(["rule", *head], rows), "", *said]


def _rules_said(name: str, numbers: pd.DataFrame, firsts: pd.DataFrame) -> str:
    """What a study says of the three predictions."""
    predictions = [str(rule) for rule in firsts.index[:3]]
    plateau = numbers.loc[numbers["rule"] == predictions[0], "measured_on_plateau"].astype(bool)
    pairs = [
        *((rule, HINDSIGHT) for rule in predictions),
        *itertools.combinations(predictions, 2),
    ]
    differences = [lost_more(numbers, *pair) for pair in pairs]
    apart = sum(found.lower > 0 or found.upper < 0 for found in differences)
    follow = sum(firsts.loc[rule, "rank_correlation_lower"] > 0 for rule in predictions)
    worst = 100 * numbers.loc[numbers["rule"].isin(predictions), "lost"].max()
    first = firsts.iloc[0]
    return (
        f"- {name[0].upper()}{name[1:]}, {first['settings']} settings of {first['problems']} problems: the "
        f"rank correlation has an interval above 0 for {follow} of the three predictions, and {apart} of "
        f"their {len(pairs)} differences in points lost (among each other and from the best fixed C) have an "
        f"interval without 0. A prediction loses up to {worst:.1f} points. The measured best C lies on the "
        f"plateau of R in {plateau.sum()} settings."
    )


def _interval(row: pd.Series, column: str, scale: float = 1) -> str:
    """A number with its 95 % interval, as far as there is one."""
    value, lower, upper = (scale * row[f"{column}{end}"] for end in ENDS)
    if math.isnan(value):
        return ""
    text = f"{value:.2f}"
    if not math.isnan(lower):
        text += f" [{lower:.2f}, {upper:.2f}]"
    return text.replace("-", "−")


def _escaped(rule: str) -> str:
    return rule.replace("*", "\\*")


# -- the bounds of convergence theory beside what was measured ---------------------------------


def bounds_progress(result: dict[str, Any]) -> list[str]:
    """How often Theorem 4.2 promises a gain, and how loose it is."""
    rows = []
    for each in result["pieces"]:
        steps = [row for point in each["progress"] for row in point["bounds"]]
        gains = [row for row in steps if row["measured"][0] < 0]
        certain = [row for row in steps if row["theorem"][0] < 0]
        ratios = [row["measured"][0] / row["theorem"][0] for row in certain]
        tuned = [row["tuned_measured"] / row["tuned_bound"] for row in steps if row["tuned_bound"]]
        rows.append(
            [
                f"{each['title']}, ε = {each['epsilon']:g}",
                f"{len(gains)} of {len(steps)}",
                f"{len(certain)}",
                f"{min(ratios):.1f} to {max(ratios):.1f}" if ratios else "",
                f"{min(tuned):,.0f} to {max(tuned):,.0f}",
            ]
        )
    head = [
        "steps of size 1/L",
        "that gain",
        "with a gain that is certain",
        "measured over certain gain",
        "the same, tuned form",
    ]
    return grid(head, rows)


def bounds_choice(result: dict[str, Any]) -> list[str]:
    """The clipping bound of Koloskova et al. beside the one with the highest accuracy."""
    rows = []
    for each in result["pieces"]:
        swept, optimum = each["accuracy"], each["koloskova"]["optimum"]
        best = max(swept, key=lambda row: row["accuracy"])
        nearest = min(
            swept,
            key=lambda row: abs(math.log(row["clipping_bound"] / optimum["clipping_bound"])),
        )
        rows.append(
            [
                f"{each['title']}, ε = {each['epsilon']:g}",
                f"{short(best['clipping_bound'])} ({100 * best['accuracy']:.1f} %)",
                short(optimum["clipping_bound"]),
                f"{short(optimum['lower'])} to {short(optimum['upper'])}",
                f"{100 * (best['accuracy'] - nearest['accuracy']):.1f}",
                f"{optimum['gradient_norm']:.1f}",
                f"{each['koloskova']['measured_gradient_norms']['end']:.2f}",
            ]
        )
    head = [
        "DP-SGD",
        "measured best C (accuracy)",
        "C of the bound",
        "bound within a factor of 2",
        "points lost",
        "the bound there",
        "gradient at the end",
    ]
    ends = [row["at_an_end"] for each in result["pieces"] for row in each["accuracy"]]
    return [
        *grid(head, rows),
        "",
        f"B = {result['batch_size']}, {result['epochs']} epochs, {result['seeds']} seeds, step size tuned "
        f"for every C; in {sum(ends)} of {len(ends)} the best one is at an end of its grid. "
        + where(result["environment"]),
    ]
