"""Checks and measurements on a GPU."""

from typing import Any

from benchmarks.tables.markdown import grid, where
from benchmarks.tables.steps import size_of_a_cell


def right_on_gpu(result: dict[str, Any]) -> list[str]:
    """The largest relative errors against the loop in float64, and what else was checked."""
    rows = [
        [piece["title"], setting, *(f"{error:.1e}" for error in errors.values())]
        for piece in result["pieces"]
        if "relative_errors" in piece
        for setting, errors in piece["relative_errors"].items()
    ]
    head = ["network, what trains", "engine", "sum", "norms", "sum, masked and spoilt"]
    head.append("length of one clipped gradient")
    said = []
    for piece in result["pieces"]:
        for setting, reason in piece.get("failures", {}).items():
            said.append(f"{piece['title']}, {setting}: not computed ({reason}).")
        if "draws" in piece:
            said.append(
                f"Noise: {piece['beyond_float32']} of {piece['draws']:,} draws beyond the largest of "
                f"float32, {piece['expected_beyond']:.0f} expected."
            )
        if "largest_relative_differences" in piece:
            found = piece["largest_relative_differences"]
            said.append(
                "Largest relative differences of parameters: "
                + ", ".join(f"{name} {value:.1e}" for name, value in found.items())
                + "."
            )
    return [*grid(head, rows), "", *said, where(result["environment"])]


def cifar100_on_gpu(result: dict[str, Any]) -> list[str]:
    """The best trial of every epsilon and rule of clipping."""
    rows = [
        [
            f"{best['epsilon']:g}",
            best["clipping"],
            f"{best['accuracy']:.3f}",
            f"{best['batch_size']:,}",
            f"{best['clipping_bound'] or ''}",
            f"{best['learning_rate']:g}",
            f"{best['examples_per_second']:,.0f}",
        ]
        for best in (piece["best"] for piece in result["pieces"])
    ]
    head = ["epsilon", "clipping", "accuracy", "B", "C", "learning rate", "examples per second"]
    rows.sort(key=lambda row: (row[1], float(row[0])))
    return [*grid(head, rows), "", where(result["environment"])]


def cell_on_gpu(result: dict[str, Any]) -> list[str]:
    """Where the wall time of a cell goes."""
    rows = [
        [
            "compiled" if each["compiled"] else "as it is",
            f"{each['process_seconds']:.1f} s",
            f"{100 * each['share_of_steps_and_evaluation']:.1f} %",
            f"{each['seconds_to_first_step']:.1f} s",
            f"{each['examples_per_second']:,}",
            f"{each.get('gigabytes', 0):.1f} GB",
        ]
        for each in result["pieces"]
    ]
    head = ["two trials", "process", "steps and evaluation", "to the first step"]
    return [
        *grid([*head, "examples per second", "memory"], rows),
        "",
        size_of_a_cell(result["pieces"][0]["size"]) + where(result["environment"]),
    ]
