"""How good a setting is, by how it was chosen."""

import math
import statistics
from typing import Any

from scipy.stats import t

from benchmarks.tables.markdown import grid


def selection(result: dict[str, Any]) -> list[str]:
    """Savings and losses of the search of the learning rate."""
    rows = []
    for name, each in {**result["problems"], "both": result["all"]}.items():
        rows += [
            [
                f"{name}, {rule}",
                f"{each[f'{key}_trials_of_a_cell']:.1f}",
                f"{each[f'{key}_mean_loss']:.2f}",
                f"{each[f'{key}_largest_loss']:.2f}",
            ]
            for rule, key in (("repeat-best", "repeat_best"), ("bracket", "bracket"))
        ]
    head = ["problem, selection", "trials of a cell", "points lost, mean", "largest"]
    return [
        *grid(head, rows),
        "",
        f"{result['all']['choices']} choices of a learning rate, each against the rate with the best mean "
        "accuracy of all seeds.",
    ]


def recommendation(result: dict[str, Any]) -> list[str]:
    """Mean regret of the recommendation and of habits, in points of macro accuracy."""
    sources = list(result["by_source"])
    rows = [
        [name, f"**{mean:.2f}**", *[_points(result["by_source"][each][name]) for each in sources]]
        for name, mean in result["mean"].items()
    ]
    return [
        *grid(["setting", "mean", *sources], rows),
        "",
        f"{result['problems']} problems, {result['without_reference']} more without a reference point of "
        "their optimizer. The mean counts each source of data the same.",
    ]


def _points(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"


def price(result: dict[str, Any]) -> list[str]:
    """Accuracy by how a setting was found, with the half width of its 95 % interval."""
    lines: list[str] = []
    pieces = result["pieces"]
    epsilons = sorted({each["epsilon"] for each in pieces})
    for problem in dict.fromkeys(each["problem"] for each in pieces):
        found: dict[str, dict[float, str]] = {}
        for each in (piece for piece in pieces if piece["problem"] == problem):
            if "refused" in each:
                found.setdefault(each["arm"], {})[each["epsilon"]] = "refused"
            for arm, key in ((each["arm"], "accuracy"), (f"{each['arm']}, trained again", "again")):
                if key in each:
                    found.setdefault(arm, {})[each["epsilon"]] = _mean(each[key])
        first = next(each for each in pieces if each["problem"] == problem)
        rows = [
            [arm, *(values.get(epsilon, "-") for epsilon in epsilons)]
            for arm, values in found.items()
        ]
        lines += [
            f"**{first['title']}**, {first['epochs']} epochs, {first['repetitions']} repetitions:",
            "",
            *grid(["accuracy in %", *(f"ε = {epsilon:g}" for epsilon in epsilons)], rows),
            "",
        ]
    trials, seconds = (sum(each.get(name, 0) for each in pieces) for name in ("trials", "seconds"))
    commits = ", ".join(dict.fromkeys(each["commit"] for each in pieces))
    return [*lines, f"{trials:,} trials, {seconds / 60:.0f} minutes, at {commits}."]


def _mean(shares: list[float]) -> str:
    """A mean in percent, and the half width of the 95 % interval of Student's t."""
    spread = statistics.stdev(shares) / math.sqrt(len(shares))
    return (
        f"{100 * statistics.mean(shares):.1f} ± {100 * t.ppf(0.975, len(shares) - 1) * spread:.1f}"
    )
