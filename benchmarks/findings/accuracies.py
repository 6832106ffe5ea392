"""The tables of accuracies: best settings, what an axis makes of them, AUTO-S, and what follows from them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

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


def _losses(rows: list[dict[str, Any]], position: int) -> list[float]:
    return [max(row["accuracy"]) - row["accuracy"][position] for row in rows]


def _about_bounds(numbers: dict[str, Any]) -> list[str]:
    rows = numbers["by_bound"]
    smallest, largest = _losses(rows, 0), _losses(rows, -1)
    differences = [row["difference"] for row in numbers["automatic"]]
    mean = points(float(np.mean(differences)))
    return [
        "**Clip everything.** The smallest C of each grid, below nearly every norm, costs at most "
        f"{100 * max(smallest):.1f} points against the best C ({100 * np.mean(smallest):.1f} in the mean "
        f"of all {len(smallest)} settings; in {sum(loss == 0 for loss in smallest)} of them it is the "
        "best). Below the norms there is little to tune.",
        "**Do not let C exceed the norms.** The largest C, above all of them, costs "
        f"{100 * min(largest):.1f} to {100 * max(largest):.1f} points: the noise grows with C, and the "
        "signal does not.",
        f"**AUTO-S instead of a tuned C** changes {points(min(differences))} to {points(max(differences))} "
        f"points ({mean} in the mean of {len(differences)}), and has no C to tune.",
    ]


def _about_batches(numbers: dict[str, Any]) -> str:
    """Table of the cost of the full batch."""
    epsilons = sorted({row["epsilon"] for row in numbers["by_batch_size"]})
    groups: dict[str, dict[float, str]] = {}
    for row in numbers["by_batch_size"]:
        lost = 100 * (max(row["accuracy"]) - row["accuracy"][-1])
        titles = numbers["titles"]
        title = f"{titles[row['dataset']]}, {titles[row['backbone']]}, {row['epochs']} epochs"
        groups.setdefault(title, {})[row["epsilon"]] = f"{lost:.1f}"
    head = [
        "points that the full batch costs against the best B",
        *(f"ε = {x:g}" for x in epsilons),
    ]
    rows = [[title, *(cells.get(x, "") for x in epsilons)] for title, cells in groups.items()]
    return table(head, rows)
