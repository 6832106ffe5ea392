"""What C and B cost a head on frozen features."""

import numpy as np

from benchmarks.tables.accuracies import (
    Row,
    by_problem,
    mean_over_problems,
    points_lost,
    relative,
)
from benchmarks.tables.markdown import grid


def advice(numbers: Row) -> list[str]:
    """What to do about C, from all settings."""
    rows = numbers["by_bound"]
    smallest, largest = ([points_lost(row, place) for row in rows] for place in (0, -1))
    differences = [100 * row["difference"] for row in numbers["automatic"]]
    beside, by_luck = numbers["beside_smallest"], sorted(numbers["chance"].values())
    hard = sum(max(row["accuracy"]) < 0.05 for row in rows)
    alike = f"{beside['mean']:+.2f}".replace("-", "−")
    return [
        f"- **Clip everything.** The smallest C of each grid, below nearly every norm, costs at most "
        f"{max(smallest):.1f} points against the luckiest C, {np.mean(smallest):.1f} in the mean of all "
        f"{len(smallest)} settings ({relative(rows, 0)} of the best accuracy). Equally good values would "
        f"cost {by_luck[0]:.1f} to {by_luck[-1]:.1f} by chance alone.",
        f"- **Do not let C exceed the norms.** The largest C, above all of them, costs "
        f"{min(largest):.1f} to {max(largest):.1f} points, {np.mean(largest):.1f} in the mean "
        f"({relative(rows, -1)} of the best accuracy). It costs little only where nothing is learnt: the "
        f"best accuracy is below 5 % in {hard} settings.",
        f"- **AUTO-S has no C to tune**: points change by "
        f"{mean_over_problems(numbers['automatic'], differences)}. AUTO-S and the smallest C both clip "
        f"everything: at the same B they differ by {alike} points in the mean of {beside['cells']} cells "
        f"(standard deviation {beside['deviation']:.2f}).",
    ]


def bounds(numbers: Row) -> list[str]:
    """For every problem, the accuracies that it reaches and what the ends of the grid of C cost."""
    rows = []
    for name, members in by_problem(numbers["by_bound"], numbers["titles"]).items():
        best = [100 * max(row["accuracy"]) for row in members]
        cells = [name, f"{min(best):.1f} to {max(best):.1f}"]
        for place in (0, -1):
            lost = [points_lost(row, place) for row in members]
            bound = members[0]["values"][place]
            cells.append(f"{np.mean(lost):.1f}, at most {max(lost):.1f} (C = {bound:g})")
        rows.append(cells)
    study, ends = numbers["study"], numbers["ends"]
    head = ["problem", "best accuracy in %", "smallest C, points lost", "largest C, points lost"]
    return [
        *grid(head, rows),
        "",
        f"{study['cells']:,} cells, {study['trials']:,} trials, {study['seeds']} seeds; {study['hours']:g} "
        "hours of training on one core. The best learning rate is at an end of its grid in "
        f"{ends['at_an_end']} of {ends['cells']:,} cells.",
    ]


def batch_sizes(numbers: Row) -> list[str]:
    """For every problem and epsilon, the best B and what the full batch costs."""
    sizes = {row["dataset"]: row["train_size"] for row in numbers["best"]}
    epsilons = sorted({row["epsilon"] for row in numbers["by_batch_size"]})
    rows = []
    for name, members in by_problem(numbers["by_batch_size"], numbers["titles"]).items():
        cells = {}
        for row in members:
            best = row["values"][int(np.argmax(row["accuracy"]))]
            written = "N" if best == sizes[row["dataset"]] else f"{best:,.0f}"
            cells[row["epsilon"]] = f"{written} ({points_lost(row, -1):.1f})"
        rows.append([name, *(cells.get(epsilon, "") for epsilon in epsilons)])
    return grid(["best B (points that B = N costs)", *(f"ε = {x:g}" for x in epsilons)], rows)
