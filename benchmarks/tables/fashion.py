"""Fashion-MNIST: the published setting, accuracies along C and B, and optimizers."""

from typing import Any

import numpy as np

from benchmarks.tables.markdown import grid


def published(result: dict[str, Any]) -> list[str]:
    """Accuracies of the published setting, by optimizer."""
    titles = {"adam": "DP-Adam", "momentum": "DP-SGD, momentum 0.9"}
    rows = [
        [
            titles[row["optimizer"]],
            f"{row['learning_rate']:g}",
            ", ".join(f"{100 * each:.2f}" for each in row["accuracies"]),
            f"{100 * np.mean(row['accuracies']):.2f}",
            f"{row['wall_seconds']:.0f} s",
        ]
        for row in result["published"]
    ]
    return grid(["optimizer", "learning rate", "accuracy in %, seeds", "mean", "a trial"], rows)


def bounds_and_sizes(result: dict[str, Any]) -> list[str]:
    """Accuracy along C and along B, everything else tuned for every value."""
    axes = {"C": result["by_bound"], "B": result["by_batch_size"]}
    head = [f"{name} = {value:,g}" for name, rows in axes.items() for value in rows[0]["values"]]
    rows = [
        [
            f"ε = {along_c['epsilon']:g}, {along_c['epochs']} epochs",
            *(f"{100 * each:.1f}" for each in (*along_c["accuracy"], *along_b["accuracy"])),
        ]
        for along_c, along_b in zip(*axes.values(), strict=True)
    ]
    return grid(["accuracy in %", *head], rows)


def advice(result: dict[str, Any]) -> list[str]:
    """What the formula and its small grid lose against a search."""

    def setting(size: float, bound: float, rate: float, accuracy: float) -> list[str]:
        return [f"B = {size:,.0f}, C = {bound:g}, η = {rate:g}", f"{accuracy:.1f}"]

    rows = [
        [
            f"{row['epsilon']:g}",
            f"{row['searched']:.1f}",
            *setting(*row["advised"]),
            f"{row['searched'] - row['advised'][-1]:.1f}",
            *setting(*row["chosen"]),
            f"{row['searched'] - row['chosen'][-1]:.1f}",
        ]
        for row in result["advice"]
    ]
    head = [
        "ε",
        "search of 12 cells",
        "formula",
        "accuracy",
        "loss",
        "small grid",
        "accuracy",
        "loss",
    ]
    return grid(head, [[each.replace("-", "−") for each in row] for row in rows])


def optimizers(result: dict[str, Any]) -> list[str]:
    """Gains over DP-Adam over all settings, with intervals over seeds."""
    rows = [
        [
            row["title"],
            _interval(row["gain"], row["lower"], row["upper"]),
            f"{row['better']}, {row['worse']} of {row['settings']}",
            _interval(row["last_gain"], row["last_lower"], row["last_upper"]),
        ]
        for row in result["gains"]
        if row["epsilon"] is None
    ]
    head = ["optimizer", "gain over DP-Adam [95 %]", "better, worse", "average over last [95 %]"]
    return grid(head, rows)


def _interval(value: float | None, lower: float, upper: float) -> str:
    if value is None:
        return ""
    return f"{value:+.2f} [{lower:+.2f}, {upper:+.2f}]".replace("-", "−")
