"""Tables of the best clipping bound: effects of privacy on it, and rules that predict it."""

import itertools
import math
from pathlib import Path

import pandas as pd

from benchmarks.common import RESULTS
from benchmarks.tables.markdown import columns, grid, interval, short
from dpsweep.analysis.predictions import HINDSIGHT
from dpsweep.analysis.statistics import Estimate, jackknife
from dpsweep.tables.write import read_numbers

THEORY, FILM_THEORY, FASHION_THEORY = (
    RESULTS / folder / "theory" for folder in ("", "film", "fashion")
)


def theory_effects(
    heads: Path = THEORY, film: Path = FILM_THEORY, fashion: Path = FASHION_THEORY
) -> list[str]:
    """Return C* after the last epoch, and C* with the noise alone and with the gradients alone.

    Args:
        heads: folder with the numbers of heads on frozen features.
        film: folder with the numbers of FiLM.
        fashion: folder with the numbers of Fashion-MNIST.
    """
    shown = {
        "": "{title}{method}, ε = {epsilon:g}",
        "median norm": lambda row: short(row["median_norm"]),
        "C\\*": lambda row: short(row["best_bound"]),
        "of its noise alone": lambda row: short(row["noise alone"]),
        "of its gradients alone": lambda row: short(row["gradients alone"]),
        "scale-free C": lambda row: short(row["direction_bound"]),
        "R within 2 %": lambda row: " to ".join(
            short(row[f"plateau_{end}"]) for end in ("lower", "upper")
        ),
    }
    rows, said = [], []
    for folder, method, over in (
        (heads, "", "batches"),
        (film, ", FiLM", "batches and trainings"),
        (fashion, "", "batches"),
    ):
        traced = read_numbers(folder / "optimal_clipping.csv").query("epoch == epochs")
        traced = traced.sort_values(["title", "epsilon"], ascending=[True, False])
        effects = read_numbers(folder / "privacy_effects.csv").query("rule == 'C*'")
        place = ["title", "epsilon"]
        alone = effects.pivot_table("best_bound", place, "effect", observed=True)
        traced = traced.assign(method=method).join(alone, on=place)
        # The largest and the smallest epsilon.
        ends = traced[traced["epsilon"].isin([traced["epsilon"].min(), traced["epsilon"].max()])]
        rows += [row for _, row in ends.iterrows()]
        for title, members in traced.groupby("title"):
            of = effects[effects["title"] == title].set_index(["effect", "epsilon"]).sort_index()
            found = _describe_effects(members.iloc[0], members.iloc[-1], of, over)
            said.append(f"- {title}{method}, {found}")
    return [*columns(shown, rows), "", *said]


def _describe_effects(loose: pd.Series, tight: pd.Series, effects: pd.DataFrame, over: str) -> str:
    """Describe the effects of noise and of gradients on C*, between the largest and smallest epsilon."""
    said, sizes = [], []
    gradients = effects.loc["gradients alone"].drop(loose["epsilon"])
    for each in (effects.loc["noise alone"], gradients):
        row = each.loc[tight["epsilon"]]
        # The smallest and the largest factor between batches.
        ends = row["smallest"] / loose["largest"], row["largest"] / loose["smallest"]
        factor = row["best_bound"] / loose["best_bound"]
        said.append(f"{short(factor)} ({short(ends[0])} to {short(ends[1])})")
        sizes.append(sorted(abs(math.log(end)) if end else math.inf for end in ends))
    larger = " The noise has the larger effect." if sizes[0][0] > sizes[1][1] else ""
    grown = (gradients["smallest"] > loose["largest"]).sum()
    fallen = (gradients["largest"] < loose["smallest"]).sum()
    return (
        f"from ε = {loose['epsilon']:g} to {tight['epsilon']:g}: the median norm is multiplied by "
        f"{tight['median_norm'] / loose['median_norm']:.2f}. The noise alone multiplies C\\* by {said[0]}, "
        f"the gradients alone by {said[1]}.{larger}{_direction(grown, fallen, len(gradients), over)}"
    )


def _direction(grown: int, fallen: int, smaller: int, over: str) -> str:
    """Describe at how many of the smaller epsilons the gradients alone move C* beyond its range."""
    if smaller > 1:
        return (
            f" The paper says that the gradients alone raise C\\*: beyond the range over {over} they do at "
            f"{grown} of the {smaller} smaller ε, and lower it at {fallen}."
        )
    if grown:
        return f" The gradients alone raise C\\* beyond the range over {over}, as the paper says."
    moved = "lower C\\* beyond" if fallen else "leave C\\* within"
    return f" The gradients alone {moved} the range over {over}."


def theory_rules(folder: Path = THEORY, film: Path = FILM_THEORY) -> list[str]:
    """Return the loss of each rule for C with intervals, and describe which rules differ.

    Args:
        folder: with the numbers of heads on frozen features, and of the demo.
        film: folder with the numbers of FiLM.
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

    def found(study: str, rule: str, column: str, scale: float) -> str:
        row = firsts[study].loc[rule]
        return interval(*(scale * row[f"{column}{end}"] for end in ("", "_lower", "_upper")))

    measures = {"points lost": ("mean_lost", 100), "rank correlation": ("rank_correlation", 1)}
    asked = [(title, study) for title in measures for study in studies]
    rows = [
        [
            rule.replace("*", "\\*"),
            *(found(study, rule, *measures[title]) for title, study in asked),
        ]
        for rule in firsts["heads"].index
    ]
    said = [_describe_rules(name, studies[name], firsts[name]) for name in studies]
    return [*grid(["rule", *map(", ".join, asked)], rows), "", *said]


def lost_more(numbers: pd.DataFrame, rule: str, other: str) -> Estimate:
    """Return how much more accuracy one rule loses than another, as a mean over their common settings.

    ``numbers`` are from `dpsweep.analysis.predictions.predicted_bounds`.
    """
    one, two = (numbers[numbers["rule"] == name] for name in (rule, other))
    setting = ["title", "problem", "epsilon", "epochs", "batch_size"]
    pairs = one.merge(two, on=setting, suffixes=("", "_other"))
    return jackknife(pairs, lambda rows: (rows["lost"] - rows["lost_other"]).mean())


def _describe_rules(name: str, numbers: pd.DataFrame, firsts: pd.DataFrame) -> str:
    """Describe the results of a study for the three predictions."""
    predictions = list(firsts.index[:3])
    plateau = numbers.loc[numbers["rule"] == predictions[0], "measured_on_plateau"].astype(bool)
    pairs = [*((rule, HINDSIGHT) for rule in predictions), *itertools.combinations(predictions, 2)]
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
