"""Tables of what a unit of several rows costs, and of what several views of an image bring."""

from typing import Any

from benchmarks.tables.markdown import grid, interval

Row = dict[str, Any]
TARGETS = (1.0, 2.0, 8.0)
"""Epsilons of what is protected."""
PROTECTED = {
    "posts": "one post",
    "posts-limited": "4 posts together, by the accountant",
    "authors-1": "an author, 1 post in a step",
    "authors-4": "an author, 4 posts in a step",
}


def _percent(found: Row) -> str:
    return interval(*(found[name] for name in ("mean", "lower", "upper")), ".1f")


def cost_of_units(numbers: Row) -> list[str]:
    """Return noise and accuracy of each guarantee, and the epsilon of four posts if one is protected."""
    rows = []
    for dataset, protected in PROTECTED.items():
        found = sorted(
            (row for row in numbers["rows"] if row["dataset"] == dataset),
            key=lambda row: row["epsilon"],
        )
        rows.append([protected, f"{found[0]['train_size']:,}"])
        rows[-1] += [f"{row['noise']:.2f}" for row in found]
        rows[-1] += [_percent(row["accuracy"]) for row in found]
    head = ["ε protects", "N", *(f"σ, ε = {x:g}" for x in TARGETS)]
    head += [f"accuracy in %, ε = {x:g}" for x in TARGETS]
    posts = [row for row in numbers["rows"] if row["dataset"] == "posts"]
    groups = ", ".join(f"{row['group_epsilon']:.3g}" for row in posts)
    limited = ", ".join(
        f"{row['epsilon']:g}" for row in numbers["rows"] if row["dataset"] == "posts-limited"
    )
    return [
        *grid(head, rows),
        "",
        f"Four posts together have ε = {groups} where one post has ε = 1, 2, 8. For ε = 1, 2, 8 of four "
        f"posts one post must have ε = {limited}. {numbers['trials']} trials with those of the views, "
        f"{numbers['hours']:g} hours.",
    ]


def gain_of_views(numbers: Row) -> list[str]:
    """Return the accuracy for each number of views."""
    rows = []
    for method, views in (("plain", "none"), ("one", "1"), ("four", "4"), ("eight", "8")):
        found = sorted(
            (row for row in numbers["rows"] if row["method"] == method),
            key=lambda row: row["epsilon"],
        )
        rows.append([views, *(_percent(row["accuracy"]) for row in found)])
    return grid(["views of a digit", "accuracy in %, ε = 2", "ε = 8"], rows)
