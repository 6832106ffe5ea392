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
    ]
    head = ["rule", "loss [95 %]", "more than the formula [95 %]", "regret", *sources]
    return [
        *grid(head, rows),
        "",
        f"{result['problems']} problems of {result['units']} units (a dataset, a network and a method). "
        "The mean counts each source of data the same. The columns of sources show the loss.",
    ]


def losses(result: dict[str, Any]) -> list[str]:
    """Where the loss of the formula comes from, and the units on which it is largest."""
    rows = [[name, _interval(found)] for name, found in result["split"].items()]
    units = [
        [
            f"{each['dataset']}, {each['backbone']}, {each['method']}",
            _number(each["loss"]),
            f"{each['best_rate']:.1f}",
        ]
        for each in result["by_unit"]
    ]
    return [
        *grid(["part", "points [95 %]"], rows),
        "",
        *grid(["unit", "loss of the formula", "best rate, in units of the formula's"], units),
    ]


def longer_training(result: dict[str, Any]) -> list[str]:
    """Accuracies by numbers of epochs at the same epsilon, and what four times as many gained."""
    numbers = sorted({int(each) for row in result["epochs"] for each in row["accuracy"]})
    rows = [
        [
            f"{row['dataset']}, {row['backbone']}, {row['method']}, ε = {row['epsilon']:g}",
            *(
                f"{found:.1f}" if (found := row["accuracy"].get(str(each))) else ""
                for each in numbers
            ),
        ]
        for row in result["epochs"]
    ]
    head = ["accuracy in %", *(f"{each} epoch{'s' if each > 1 else ''}" for each in numbers)]
    gains = [
        [f"{int(each) // 4} to {each}", f"{mean:+.1f}", f"{low:+.1f} to {high:+.1f}", str(count)]
        for each, (mean, low, high, count) in result["gained"].items()
    ]
    return [
        *grid(head, rows),
        "",
        *[
            row.replace("-", "−") if "---" not in row else row
            for row in grid(["epochs", "points gained", "lowest to highest", "settings"], gains)
        ],
    ]


def _interval(found: list[float]) -> str:
    mean, lower, upper = map(_number, found)
    return f"{mean} [{lower}, {upper}]"


def _number(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")


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
