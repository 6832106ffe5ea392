"""The bounds of convergence theory beside what was measured."""

import math
from typing import Any

from benchmarks.tables.markdown import grid, short, where


def bounds_progress(result: dict[str, Any]) -> list[str]:
    """How often Theorem 4.2 promises a gain, and how loose it is."""
    rows = []
    for each in result["pieces"]:
        steps = [row for point in each["progress"] for row in point["bounds"]]
        gains = [row for row in steps if row["measured"][0] < 0]
        certain = [row for row in steps if row["theorem"][0] < 0]
        ratios = [row["measured"][0] / row["theorem"][0] for row in certain]
        tuned = [row["tuned_measured"] / row["tuned_bound"] for row in steps if row["tuned_bound"]]
        rows.append(
            [
                f"{each['title']}, ε = {each['epsilon']:g}",
                f"{len(gains)} of {len(steps)}",
                f"{len(certain)}",
                f"{min(ratios):.1f} to {max(ratios):.1f}" if ratios else "",
                f"{min(tuned):,.0f} to {max(tuned):,.0f}",
            ]
        )
    head = [
        "steps of size 1/L",
        "that gain",
        "with a gain that is certain",
        "measured over certain gain",
        "the same, tuned form",
    ]
    return grid(head, rows)


def bounds_choice(result: dict[str, Any]) -> list[str]:
    """The clipping bound of Koloskova et al. beside the one with the highest accuracy."""
    rows = []
    for each in result["pieces"]:
        swept, optimum = each["accuracy"], each["koloskova"]["optimum"]
        best = max(swept, key=lambda row: row["accuracy"])
        nearest = min(
            swept,
            key=lambda row: abs(math.log(row["clipping_bound"] / optimum["clipping_bound"])),
        )
        rows.append(
            [
                f"{each['title']}, ε = {each['epsilon']:g}",
                f"{short(best['clipping_bound'])} ({100 * best['accuracy']:.1f} %)",
                short(optimum["clipping_bound"]),
                f"{short(optimum['lower'])} to {short(optimum['upper'])}",
                f"{100 * (best['accuracy'] - nearest['accuracy']):.1f}",
                f"{optimum['gradient_norm']:.1f}",
                f"{each['koloskova']['measured_gradient_norms']['end']:.2f}",
            ]
        )
    head = [
        "DP-SGD",
        "measured best C (accuracy)",
        "C of the bound",
        "bound within a factor of 2",
        "points lost",
        "the bound there",
        "gradient at the end",
    ]
    ends = [row["at_an_end"] for each in result["pieces"] for row in each["accuracy"]]
    return [
        *grid(head, rows),
        "",
        f"B = {result['batch_size']}, {result['epochs']} epochs, {result['seeds']} seeds, step size tuned "
        f"for every C; in {sum(ends)} of {len(ends)} the best one is at an end of its grid. "
        + where(result["environment"]),
    ]
