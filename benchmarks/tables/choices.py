"""How good a setting is, by how it was chosen: rules, tuning inside epsilon, Fashion-MNIST."""

import math
import statistics
from typing import Any

import numpy as np
from scipy.stats import t

from benchmarks.tables.markdown import columns, grid, interval, minus

Result = dict[str, Any]
_SHOWN = (
    "search of the whole grid",
    "formula",
    "rate × 0.5",
    "rate × 2",
    "C × 1/4",
    "C × 4",
    "B × 1/4",
    "B × 4",
    "full batch",
    "habit: C = 1, B = 256, rate 0.001",
    "habit: C = 1, B = 256, rate 0.01",
    "three runs: rates",
    "six runs: {B, 4B} × rates",
    "small grid: {B/4, B, 4B} × rates",
    "the same, with the rates of B",
)
"""Rules in the table; recommend.json has all that were tried."""
_WORSE_HABIT = "habit: C = 1, B = 256, learning rate 0.001"
"""Worse than the other one everywhere; price.json has it."""


def recommendation(result: Result) -> list[str]:
    """What every rule loses, in points of macro accuracy."""
    rows = [{"rule": name} | result["rules"][name] for name in _SHOWN]
    shown = {
        "rule": "{rule}",
        "loss [95 %]": lambda row: interval(*row["loss"]) if any(row["loss"]) else "0",
        "more than the formula [95 %]": lambda row: (
            interval(*row["beside_formula"]) if any(row["beside_formula"]) else ""
        ),
        "regret": "{regret[0]:.2f}",
        **{
            source: lambda row, source=source: minus(f"{row['by_source'][source]:.2f}")
            for source in rows[0]["by_source"]
        },
    }
    return [
        *columns(shown, rows),
        "",
        f"{result['problems']} problems of {result['units']} units (a dataset, a network and a method). "
        f"The mean counts each source of data the same; the columns of sources show the loss. "
        f"{len(result['rules']) - 1} rules were tried on these problems; all are in `recommend.json`.",
    ]


def longer_training(result: Result) -> list[str]:
    """Points that four times as many epochs gained at the same epsilon."""
    rows = [
        [f"{int(each) // 4} to {each}", f"{mean:+.1f}", f"{low:+.1f} to {high:+.1f}", str(count)]
        for each, (mean, low, high, count) in result["gained"].items()
    ]
    head = ["epochs", "points gained", "lowest to highest", "settings"]
    return grid(head, [list(map(minus, row)) for row in rows])


def price(result: Result) -> list[str]:
    """Accuracy by how a setting was found, with the half width of its 95 % interval."""
    pieces = [each for each in result["pieces"] if each["arm"] != _WORSE_HABIT]
    epsilons = sorted({each["epsilon"] for each in pieces})
    found: dict[tuple[str, str], dict[float, str]] = {}
    for each in pieces:
        title = f"{each['title']}, {each['epochs']} epochs"
        said = "refused" if "refused" in each else _mean(each["accuracy"])
        found.setdefault((title, each["arm"]), {})[each["epsilon"]] = said
    rows = [[*names, *(of.get(each, "-") for each in epsilons)] for names, of in found.items()]
    head = ["accuracy in %", "setting", *(f"ε = {epsilon:g}" for epsilon in epsilons)]
    trials = sum(each.get("trials", 0) for each in pieces)
    said = f"Means of {pieces[0]['repetitions']} repetitions; {trials:,} trials."
    return [*grid(head, rows), "", said]


def _mean(shares: list[float]) -> str:
    """A mean in percent, and the half width of the 95 % interval of Student's t."""
    error = statistics.stdev(shares) / math.sqrt(len(shares))
    half = t.ppf(0.975, len(shares) - 1) * error
    return f"{100 * statistics.mean(shares):.1f} ± {100 * half:.1f}"


# -- Fashion-MNIST -----------------------------------------------------------------------------


def published(result: Result) -> list[str]:
    """Accuracies of the published setting, by optimizer."""
    titles = {"adam": "DP-Adam", "momentum": "DP-SGD, momentum 0.9"}
    shown = {
        "optimizer": lambda row: titles[row["optimizer"]],
        "learning rate": "{learning_rate:g}",
        "accuracy in %, seeds": lambda row: ", ".join(f"{100 * x:.2f}" for x in row["accuracies"]),
        "mean": lambda row: f"{100 * np.mean(row['accuracies']):.2f}",
        "a trial": "{wall_seconds:.0f} s",
    }
    return columns(shown, result["published"])


def bounds_and_sizes(result: Result) -> list[str]:
    """Accuracy along C and along B, everything else tuned for every value."""
    axes = {"C": result["by_bound"], "B": result["by_batch_size"]}
    head = [f"{name} = {value:,g}" for name, rows in axes.items() for value in rows[0]["values"]]
    rows = [
        [f"ε = {by_bound['epsilon']:g}, {by_bound['epochs']} epochs"]
        + [f"{100 * each:.1f}" for each in (*by_bound["accuracy"], *by_size["accuracy"])]
        for by_bound, by_size in zip(*axes.values(), strict=True)
    ]
    return grid(["accuracy in %", *head], rows)


def advice(result: Result) -> list[str]:
    """What the formula and its small grid lose against a search."""
    rows = []
    for row in result["advice"]:
        cells = [f"{row['epsilon']:g}", f"{row['searched']:.1f}"]
        for size, bound, rate, accuracy in (row["advised"], row["chosen"]):
            cells += [f"B = {size:,.0f}, C = {bound:g}, η = {rate:g}", f"{accuracy:.1f}"]
            cells.append(f"{row['searched'] - accuracy:.1f}")
        rows.append(list(map(minus, cells)))
    head = [
        *("ε", "search of 12 cells", "formula", "accuracy", "loss"),
        *("small grid", "accuracy", "loss"),
    ]
    return grid(head, rows)


def optimizers(result: Result) -> list[str]:
    """Gains over DP-Adam over all settings, with intervals over seeds."""

    def gain(row: Result, last: str = "") -> str:
        return interval(*(row[f"{last}{each}"] for each in ("gain", "lower", "upper")), "+.2f")

    shown = {
        "optimizer": "{title}",
        "gain over DP-Adam [95 %]": gain,
        "better, worse": "{better}, {worse} of {settings}",
        "average over last [95 %]": lambda row: gain(row, "last_"),
    }
    return columns(shown, [row for row in result["gains"] if row["epsilon"] is None])
