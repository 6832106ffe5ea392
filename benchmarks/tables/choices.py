"""Tables of the gain from more epochs, and of the findings on Fashion-MNIST."""

from collections.abc import Collection
from typing import Any

import numpy as np

from benchmarks.tables.markdown import columns, grid, interval, minus

Result = dict[str, Any]


def longer_training(result: Result) -> list[str]:
    """Return the gain from four times as many epochs at the same epsilon, in points."""
    rows = [
        [f"{int(each) // 4} to {each}", f"{mean:+.1f}", f"{low:+.1f} to {high:+.1f}", str(count)]
        for each, (mean, low, high, count) in result["gained"].items()
    ]
    head = ["epochs", "points gained", "lowest to highest", "settings"]
    return grid(head, [list(map(minus, row)) for row in rows])


# -- Fashion-MNIST -----------------------------------------------------------------------------


def published(result: Result) -> list[str]:
    """Return the accuracies of the published setting, by optimizer."""
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
    """Return the accuracy for every C and every B, with everything else tuned."""
    axes = {"C": result["by_bound"], "B": result["by_batch_size"]}
    head = [f"{name} = {value:,g}" for name, rows in axes.items() for value in rows[0]["values"]]
    rows = [
        [f"ε = {by_bound['epsilon']:g}, {by_bound['epochs']} epochs"]
        + [f"{100 * each:.1f}" for each in (*by_bound["accuracy"], *by_size["accuracy"])]
        for by_bound, by_size in zip(*axes.values(), strict=True)
    ]
    return grid(["accuracy in %", *head], rows)


def advice_by_pair(result: Result) -> list[str]:
    """Return what advice without a search loses on each pair of an encoder and data."""
    hidden = {row["pair"] for row in result["hidden"]}
    return _losses(result["pairs"] + result["hidden"], hidden)


def advice_in_the_loop(result: Result) -> list[str]:
    """Return what advice without a search loses where the whole network runs in each step."""
    return _losses(result["in_the_loop"], frozenset())


def _losses(problems: list[Result], hidden: Collection[str]) -> list[str]:
    """Return a row for each pair, with its values at every epsilon."""
    pairs: dict[str, dict[float, Result]] = {}
    for row in problems:
        pairs.setdefault(row["pair"], {})[row["epsilon"]] = row
    epsilons = ", ".join(f"{each:g}" for each in sorted({row["epsilon"] for row in problems}))

    def cells(name: str, key: str) -> str:
        found = [row[key] for _, row in sorted(pairs[name].items())]
        return "" if None in found else minus(", ".join(f"{each:.1f}" for each in found))

    shown = {
        "search": "searched",
        "formula loses": "loss",
        "earlier formula": "earlier",
        "small grid": "small_grid",
    }
    rows = [
        [f"{name.replace('_', ', ')}{' (hidden)' if name in hidden else ''}"]
        + [cells(name, key) for key in shown.values()]
        for name in pairs
    ]
    return grid([f"at ε = {epsilons}", *shown], rows)


def optimizers(result: Result) -> list[str]:
    """Return the gains over DP-Adam over all settings, with intervals over seeds."""

    def gain(row: Result, last: str = "") -> str:
        return interval(*(row[f"{last}{each}"] for each in ("gain", "lower", "upper")), "+.2f")

    shown = {
        "optimizer": "{title}",
        "gain over DP-Adam [95 %]": gain,
        "better, worse": "{better}, {worse} of {settings}",
        "average over last [95 %]": lambda row: gain(row, "last_"),
    }
    return columns(shown, [row for row in result["gains"] if row["epsilon"] is None])
