"""Summarize the numbers."""

from typing import Any

import numpy as np

from benchmarks.findings.wording import points, table


def advice(numbers: dict[str, Any]) -> str:
    """Summarize the numbers."""
    said = "\n".join(f"- {line}" for line in _about_bounds(numbers))
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
