"""The tables of accuracies: best settings, what an axis makes of them, and AUTO-S."""

from collections.abc import Callable
from typing import Any

from benchmarks.findings.wording import points, share, table

Row = dict[str, Any]


def best_settings(numbers: dict[str, Any]) -> str:
    """The best cell of every problem."""
    size = _batch_size(numbers)
    rows = [
        [
            _name(row, numbers["titles"]),
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
            _name(row, numbers["titles"]),
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


def _name(row: Row, titles: dict[str, str]) -> str:
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
            lines.append([_name(row, titles), *cells])
        grids.append(table(["accuracy in %", *heads], lines))
    return "\n\n".join(grids)
