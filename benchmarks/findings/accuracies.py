"""The tables of accuracies: best settings, what an axis makes of them, AUTO-S, and what follows from them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.stats import t as student

from benchmarks.tables.markdown import line

Row = dict[str, Any]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join(map(line, [head, ["---", *["---:"] * (len(head) - 1)], *rows]))


def share(value: float | None) -> str:
    """An accuracy, as a percentage with one digit."""
    return "" if value is None else f"{100 * value:.1f}"


def points(value: float) -> str:
    """A difference of accuracies, in percentage points."""
    return f"{100 * value:+.1f}".replace("-", "−")


def best_settings(numbers: dict[str, Any]) -> str:
    """The best cell of every problem."""
    size = _batch_size(numbers)
    rows = [
        [
            setting_name(row, numbers["titles"]),
            share(row["centre"]),
            f"{share(row['minimum'])} to {share(row['maximum'])}",
            size(row, row["batch_size"]),
            f"{row['clipping_bound']:g}",
            f"{row['learning_rate']:g}",
        ]
        for row in numbers["best"]
    ]
    return table(["problem", "accuracy in %", "seeds", "B", "C", "learning rate"], rows)


def along_bounds(numbers: dict[str, Any]) -> str:
    """Accuracy along C."""
    return _curves(numbers["by_bound"], "C", numbers["titles"], lambda _, value: f"{value:g}")


def along_batch_sizes(numbers: dict[str, Any]) -> str:
    """Accuracy along B."""
    return _curves(numbers["by_batch_size"], "B", numbers["titles"], _batch_size(numbers))


def automatic_clipping(numbers: dict[str, Any]) -> str:
    """AUTO-S beside flat clipping with a tuned bound."""
    rows = [
        [
            setting_name(row, numbers["titles"]),
            share(row["cross_fitted_auto"]),
            share(row["cross_fitted"]),
            points(row["difference"]),
        ]
        for row in numbers["automatic"]
    ]
    return table(["problem", "AUTO-S", "tuned C", "difference, points"], rows)


def _batch_size(numbers: dict[str, Any]) -> Callable[[Row, float], str]:
    """How a batch size is written: N where it is all examples of the row's dataset."""
    sizes = {row["dataset"]: row["train_size"] for row in numbers["best"]}

    def written(row: Row, value: float) -> str:
        return "N" if value == sizes[row["dataset"]] else f"{value:,.0f}"

    return written


def setting_name(row: Row, titles: dict[str, str]) -> str:
    """The dataset, network, epochs and epsilon of a row."""
    epochs = f", {row['epochs']} epochs"
    return f"{titles[row['dataset']]}, {titles[row['backbone']]}{epochs}, ε = {row['epsilon']:g}"


def _curves(
    rows: list[Row], name: str, titles: dict[str, str], written: Callable[[Row, float], str]
) -> str:
    """A table for each set of values along an axis."""
    grids = []
    groups: dict[tuple[float, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row["values"]), []).append(row)
    for values, members in groups.items():
        heads = [f"{name} = {written(members[0], value)}" for value in values]
        lines = []
        for row in members:
            best = max(row["accuracy"])
            cells = [
                f"**{share(each)}**" if each == best else share(each) for each in row["accuracy"]
            ]
            lines.append([setting_name(row, titles), *cells])
        grids.append(table(["accuracy in %", *heads], lines))
    return "\n\n".join(grids)


# -- what follows from them --------------------------------------------------------------------


def advice(numbers: dict[str, Any]) -> str:
    """Summarize the numbers."""
    said = "\n".join(f"- {each}" for each in _about_bounds(numbers))
    return f"{said}\n\n{_about_batches(numbers)}"


def points_lost(row: Row, position: int) -> float:
    """Points that a value of an axis lies below the best one."""
    return 100 * float(max(row["accuracy"]) - row["accuracy"][position])


def relative(rows: Sequence[Row], position: int) -> str:
    """What a value of an axis costs in the mean, in percent of the best accuracy of each setting."""
    shares = [points_lost(row, position) / max(row["accuracy"]) for row in rows]
    return f"{np.mean(shares):.0f} %"


def mean_over_problems(rows: Sequence[Row], values: Sequence[float]) -> str:
    """The mean of values, with its 95 % t interval over problems (dataset and network).

    Settings of a problem share data, network and test set, so the problems are the units.
    """
    units: dict[tuple[str, str], list[float]] = {}
    for row, value in zip(rows, values, strict=True):
        units.setdefault((row["dataset"], row["backbone"]), []).append(value)
    means = [float(np.mean(each)) for each in units.values()]
    found = f"{np.mean(means):+.1f}"
    if len(means) < 3:
        return f"{found} in the mean of {len(means)} problems, too few for an interval".replace(
            "-", "−"
        )
    reach = student.ppf(0.975, len(means) - 1) * np.std(means, ddof=1) / np.sqrt(len(means))
    low, high = np.mean(means) - reach, np.mean(means) + reach
    return f"{found} [{low:+.1f}, {high:+.1f}] over {len(means)} problems".replace("-", "−")


def _about_bounds(numbers: dict[str, Any]) -> list[str]:
    rows = numbers["by_bound"]
    smallest, largest = ([points_lost(row, place) for row in rows] for place in (0, -1))
    differences = [100 * row["difference"] for row in numbers["automatic"]]
    beside, by_luck = numbers["beside_smallest"], sorted(numbers["chance"].values())
    reached = [max(row["accuracy"]) for row in rows]
    hard = sum(each < 0.05 for each in reached)
    alike = f"{beside['mean']:+.2f}".replace("-", "−")
    return [
        "**Clip everything.** The smallest C of each grid, below nearly every norm, costs at most "
        f"{max(smallest):.1f} points against the luckiest C, {np.mean(smallest):.1f} in the mean of all "
        f"{len(smallest)} settings ({relative(rows, 0)} of the best accuracy). Equally good values would "
        f"cost {by_luck[0]:.1f} to {by_luck[-1]:.1f} by chance alone. Below the norms there is little to "
        "tune.",
        "**Do not let C exceed the norms.** The largest C, above all of them, costs "
        f"{min(largest):.1f} to {max(largest):.1f} points, {np.mean(largest):.1f} in the mean "
        f"({relative(rows, -1)} of the best accuracy): the noise grows with C, and the signal does not. "
        f"Where it costs little, nothing is learnt: the best accuracy is below 5 % in {hard} settings.",
        "**AUTO-S instead of a tuned C** changes "
        f"{mean_over_problems(numbers['automatic'], differences)}, and has no C to tune. AUTO-S and the "
        f"smallest C both clip everything: at the same B they differ by {alike} points in the mean of "
        f"{beside['cells']} cells (standard deviation {beside['deviation']:.2f}), which is noise.",
    ]


def _about_batches(numbers: dict[str, Any]) -> str:
    """Table of the cost of the full batch."""
    epsilons = sorted({row["epsilon"] for row in numbers["by_batch_size"]})
    groups: dict[str, dict[float, str]] = {}
    for row in numbers["by_batch_size"]:
        titles = numbers["titles"]
        title = f"{titles[row['dataset']]}, {titles[row['backbone']]}, {row['epochs']} epochs"
        groups.setdefault(title, {})[row["epsilon"]] = f"{points_lost(row, -1):.1f}"
    head = [
        "points that the full batch costs against the best B",
        *(f"ε = {x:g}" for x in epsilons),
    ]
    rows = [[title, *(cells.get(x, "") for x in epsilons)] for title, cells in groups.items()]
    return table(head, rows)
