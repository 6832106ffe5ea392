"""The section on the network in the loop."""

import math
import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.findings.wording import share, table


def film_section(film: dict[str, Any]) -> str:
    """The grid of every epsilon with the network in the loop, and what its C cost."""
    bounds = sorted({row["clipping_bound"] for row in film["rows"]})
    grids: dict[tuple[float, int], dict[float, float]] = {}
    for row in film["rows"]:
        grids.setdefault((row["epsilon"], row["batch_size"]), {})[row["clipping_bound"]] = row[
            "centre"
        ]
    lines = [
        [f"ε = {epsilon:g}, B = {size:,}", *(share(cells.get(bound)) for bound in bounds)]
        for (epsilon, size), cells in grids.items()
    ]
    apart = [100 * (row["maximum"] - row["minimum"]) for row in film["rows"]]
    error = max(math.sqrt(row["centre"] * (1 - row["centre"])) for row in film["rows"])
    said = [
        f"- What is noise: the two seeds of a cell differ by {statistics.mean(apart):.1f} points in the mean "
        f"and by {max(apart):.1f} at most, and {film['test_examples']:,} test examples give the accuracy of "
        f"one model a standard error of up to {100 * error / math.sqrt(film['test_examples']):.1f} points. "
        "There is no interval for the best of a few cells with two seeds. The best learning rate is at an "
        f"end of its grid in {film['rates']['at_an_end']} of {film['rates']['cells']} cells."
    ]
    for epsilon in sorted({epsilon for epsilon, _ in grids}):
        best = {
            bound: max(
                cells.get(bound, 0) for (other, _), cells in grids.items() if other == epsilon
            )
            for bound in bounds
        }
        by_size = {
            size: max(cells.values()) for (other, size), cells in grids.items() if other == epsilon
        }
        said.append(
            f"- ε = {epsilon:g}: against the best C, B tuned with it, accuracy is lower by "
            f"{_costs('C', best)}. Against the best B, C tuned with it, it is lower by "
            f"{_costs('B', by_size)}."
        )
    head = ["accuracy in %", *(f"C = {bound:g}" for bound in bounds)]
    mean = "The mean over the seeds, at the best of four learning rates:"
    done = f"{film['done']} of its {film['cells']} cells have been trained. {mean}"
    return "\n\n".join([done, table(head, lines), "\n".join(said)])


def _costs(axis: str, accuracies: Mapping[Any, float]) -> str:
    """How many points each value of an axis is below the best one."""
    best = max(accuracies.values())
    return ", ".join(
        f"{100 * (best - accuracy):.1f} at {axis} = {value:,g}"
        for value, accuracy in accuracies.items()
    )
