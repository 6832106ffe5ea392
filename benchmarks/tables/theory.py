"""Tables of the best clipping bound: effects of privacy on it, and rules that predict it."""

import itertools
from pathlib import Path

import pandas as pd

from benchmarks.common import RESULTS
from benchmarks.tables.markdown import columns, grid, interval, short
from dpsweep.analysis.frames import read_numbers
from dpsweep.analysis.predictions import HINDSIGHT
from dpsweep.analysis.statistics import Estimate, jackknife

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
    rows: list[pd.Series] = []
    factors: list[list[str]] = []
    for folder, method in ((heads, ""), (film, ", FiLM"), (fashion, "")):
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
            factors.append([f"{title}{method}", *_effects(members.iloc[0], members.iloc[-1], of)])
    heads_of_factors = ["", "ε", "norm", "C\\* by the noise", "C\\* by the gradients"]
    moved = ["gradients raise C\\*", "lower C\\*"]
    return [*columns(shown, rows), "", *grid([*heads_of_factors, *moved], factors)]


def _effects(loose: pd.Series, tight: pd.Series, effects: pd.DataFrame) -> list[str]:
    """Return by how much a smaller epsilon multiplies the median norm and C*, with ranges over batches.

    The last two entries are the numbers of smaller epsilons at which the gradients alone move C* beyond
    its range.
    """
    gradients = effects.loc["gradients alone"].drop(loose["epsilon"])
    found = []
    for each in (effects.loc["noise alone"], gradients):
        row = each.loc[tight["epsilon"]]
        # The smallest and the largest factor between batches.
        ends = row["smallest"] / loose["largest"], row["largest"] / loose["smallest"]
        factor = row["best_bound"] / loose["best_bound"]
        found.append(f"{short(factor)} ({short(ends[0])} to {short(ends[1])})")
    moved = gradients["smallest"] > loose["largest"], gradients["largest"] < loose["smallest"]
    return [
        f"{loose['epsilon']:g} to {tight['epsilon']:g}",
        f"{tight['median_norm'] / loose['median_norm']:.2f}",
        *found,
        *(f"{each.sum()} of {len(gradients)}" for each in moved),
    ]


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
    judged = [_judge_rules(name, studies[name], firsts[name]) for name in studies]
    heads = ["study", "settings", "problems", "they follow the best C", "they differ"]
    more = ["a prediction loses at most", "best C on the plateau of R"]
    return [*grid(["rule", *map(", ".join, asked)], rows), "", *grid([*heads, *more], judged)]


def lost_more(numbers: pd.DataFrame, rule: str, other: str) -> Estimate:
    """Return how much more accuracy one rule loses than another, as a mean over their common settings.

    ``numbers`` are from `dpsweep.analysis.predictions.predicted_bounds`.
    """
    one, two = (numbers[numbers["rule"] == name] for name in (rule, other))
    setting = ["title", "problem", "epsilon", "epochs", "batch_size"]
    pairs = one.merge(two, on=setting, suffixes=("", "_other"))
    return jackknife(pairs, lambda rows: (rows["lost"] - rows["lost_other"]).mean())


def _judge_rules(name: str, numbers: pd.DataFrame, firsts: pd.DataFrame) -> list[str]:
    """Return what the intervals of a study say about the three predictions."""
    predictions = list(firsts.index[:3])
    plateau = numbers.loc[numbers["rule"] == predictions[0], "measured_on_plateau"].astype(bool)
    pairs = [*((rule, HINDSIGHT) for rule in predictions), *itertools.combinations(predictions, 2)]
    differences = [lost_more(numbers, *pair) for pair in pairs]
    apart = sum(found.lower > 0 or found.upper < 0 for found in differences)
    follow = sum(firsts.loc[rule, "rank_correlation_lower"] > 0 for rule in predictions)
    worst = 100 * numbers.loc[numbers["rule"].isin(predictions), "lost"].max()
    first = firsts.iloc[0]
    return [
        name,
        str(first["settings"]),
        str(first["problems"]),
        f"{follow} of {len(predictions)}",
        f"{apart} of {len(pairs)}",
        f"{worst:.1f} points",
        f"{plateau.sum()} of {first['settings']}",
    ]
