"""How good a setting is, by how it was chosen."""

import math
import statistics
from typing import Any

from scipy.stats import t

from benchmarks.tables.markdown import grid

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


def selection(result: dict[str, Any]) -> list[str]:
    """Savings and losses of the search of the learning rate."""
    each = result["all"]
    rows = [
        [
            f"`{rule}`",
            f"{each[f'{key}_trials_of_a_cell']:.1f}",
            f"{each[f'{key}_mean_loss']:.2f}",
            f"{each[f'{key}_largest_loss']:.2f}",
        ]
        for rule, key in (("repeat-best", "repeat_best"), ("bracket", "bracket"))
    ]
    head = ["selection", "trials of a cell", "points lost, mean", "largest"]
    return [
        *grid(head, rows),
        "",
        f"{result['all']['choices']} choices of a learning rate, each against the rate with the best mean "
        "accuracy of all seeds.",
    ]


def recommendation(result: dict[str, Any]) -> list[str]:
    """What every rule loses, in points of macro accuracy."""
    sources = list(next(iter(result["rules"].values()))["by_source"])
    rows = [
        [
            name,
            _interval(found["loss"]) if any(found["loss"]) else "0",
            _interval(found["beside_formula"]) if any(found["beside_formula"]) else "",
            f"{found['regret'][0]:.2f}",
            *[_number(found["by_source"][each]) for each in sources],
        ]
        for name, found in result["rules"].items()
        if name in _SHOWN
    ]
    head = ["rule", "loss [95 %]", "more than the formula [95 %]", "regret", *sources]
    return [
        *grid(head, rows),
        "",
        f"{result['problems']} problems of {result['units']} units (a dataset, a network and a method). "
        f"The mean counts each source of data the same; the columns of sources show the loss. "
        f"{len(result['rules']) - 1} rules were tried on these problems; all are in `recommend.json`.",
    ]


def longer_training(result: dict[str, Any]) -> list[str]:
    """Points that four times as many epochs gained at the same epsilon."""
    gains = [
        [f"{int(each) // 4} to {each}", f"{mean:+.1f}", f"{low:+.1f} to {high:+.1f}", str(count)]
        for each, (mean, low, high, count) in result["gained"].items()
    ]
    head = ["epochs", "points gained", "lowest to highest", "settings"]
    return grid(head, [[each.replace("-", "−") for each in row] for row in gains])


def _interval(found: list[float]) -> str:
    mean, lower, upper = map(_number, found)
    return f"{mean} [{lower}, {upper}]"


def _number(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")


def price(result: dict[str, Any]) -> list[str]:
    """Accuracy by how a setting was found, with the half width of its 95 % interval."""
    pieces = [each for each in result["pieces"] if each["arm"] != _WORSE_HABIT]
    epsilons = sorted({each["epsilon"] for each in pieces})
    found: dict[tuple[str, str], dict[float, str]] = {}
    for each in pieces:
        title = f"{each['title']}, {each['epochs']} epochs"
        said = "refused" if "refused" in each else _mean(each["accuracy"])
        found.setdefault((title, each["arm"]), {})[each["epsilon"]] = said
    rows = [
        [*names, *(values.get(epsilon, "-") for epsilon in epsilons)]
        for names, values in found.items()
    ]
    head = ["accuracy in %", "setting", *(f"ε = {epsilon:g}" for epsilon in epsilons)]
    trials = sum(each.get("trials", 0) for each in pieces)
    return [
        *grid(head, rows),
        "",
        f"Means of {pieces[0]['repetitions']} repetitions; {trials:,} trials.",
    ]


_WORSE_HABIT = "habit: C = 1, B = 256, learning rate 0.001"
"""Worse than the other one everywhere; price.json has it."""


def _mean(shares: list[float]) -> str:
    """A mean in percent, and the half width of the 95 % interval of Student's t."""
    spread = statistics.stdev(shares) / math.sqrt(len(shares))
    return (
        f"{100 * statistics.mean(shares):.1f} ± {100 * t.ppf(0.975, len(shares) - 1) * spread:.1f}"
    )
