"""Epsilon: what its calibration costs, and what the audit measured."""

import csv
import math
import statistics
from typing import Any

from benchmarks.common import RESULTS
from benchmarks.tables.markdown import grid, where


def calibration(result: dict[str, Any]) -> list[str]:
    """The calibrations of the paper's study, and other tools on a sample."""
    study, comparison = result["calibration"], result["calibration_comparison"]
    settings = comparison["settings"]
    rows = []
    for tool in settings[0]["tools"]:
        pairs = [(each["tools"][tool], each["tools"]["dpsweep"]) for each in settings]
        done = [pair for pair in pairs if "noise_multiplier" in pair[0]]
        excess = [measured["excess_percent"] for measured, _ in done]
        ratios = [measured["cpu_seconds"] / ours["cpu_seconds"] for measured, ours in done]
        rows.append(
            [
                tool,
                f"{len(done)} of {len(pairs)}",
                f"{statistics.median(ratios):.1f}x",
                f"{max(ratios):.0f}x",
                f"{statistics.median(excess):+.2f} %",
                f"{max(excess):+.2f} %",
            ]
        )
    head = ["tool", "settings solved", "time, median", "largest", "excess noise, median", "largest"]
    low, high = study["certified_over_target"]
    return [
        f"All {study['calibrations']} distinct calibrations of the paper's study, one after the other: "
        f"{study['cpu_seconds']:.0f} s of processor time, at most {study['slowest_cpu_seconds']:.1f} s each, "
        f"{study['peak_megabytes']:,} MB; certified epsilon is {math.floor(1e4 * low) / 1e4:.4f} to "
        f"{high:.4f} of its target.",
        "",
        *grid(head, rows),
        "",
        "Processor time as a multiple of dpsweep's, noise over the exact minimum. "
        + where(comparison["environment"]),
    ]


def _bounds(row: dict[str, str]) -> str:
    """What was measured by the bound of the pair, that of the curve, and by the noise itself."""
    names = ("lower_bound", "curve_bound", "noise_bound")
    return "≥ " + ", ".join(f"{float(row[name]):.2f}" for name in names)


def audit() -> list[str]:
    """Measurements of the demo's audit: results/demo/audit/audit.csv, copied to the results."""
    with (RESULTS / "audit.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    columns = {
        full: [row for row in rows if row["full_batch"] == full] for full in ("False", "True")
    }
    part, full = (columns[name][0] for name in ("False", "True"))
    return grid(
        [
            "claimed ε",
            f"measured, B = {part['batch_size']} (q = {float(part['sampling_rate']):.2f}, "
            f"T = {part['steps']})",
            f"measured, full batch (T = {full['steps']})",
        ],
        [
            [
                f"{float(one['epsilon']):g}",
                *map(_bounds, (one, other)),
            ]
            for one, other in zip(*columns.values(), strict=True)
        ],
    )
