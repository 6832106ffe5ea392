"""Tables of epsilon: the cost of its calibration, and the results of the audit."""

import math
from typing import Any

import pandas as pd

from benchmarks.common import RESULTS
from benchmarks.tables.markdown import grid


def calibration(study: dict[str, Any]) -> list[str]:
    """Return a line about the calibrations of the paper's study."""
    low, high = study["certified_over_target"]
    return [
        f"All {study['calibrations']} distinct calibrations of the paper's study, one after the other: "
        f"{study['cpu_seconds']:.0f} s of processor time, at most {study['slowest_cpu_seconds']:.1f} s each, "
        f"{study['peak_megabytes']:,} MB; certified epsilon is {math.floor(1e4 * low) / 1e4:.4f} to "
        f"{high:.4f} of its target."
    ]


def audit() -> list[str]:
    """Return the table of the demo's audit, from a copy of results/demo/audit/audit.csv."""
    rows = pd.read_csv(RESULTS / "audit.csv").sort_values("full_batch", kind="stable")
    part, full = (group.to_dict("records") for _, group in rows.groupby("full_batch"))

    def bounds(row: dict[str, float]) -> str:
        """Format the lower bounds from the curve and from the noise itself."""
        return "≥ {curve_bound:.2f}, {noise_bound:.2f}".format_map(row)

    sampled = "measured, B = {batch_size} (q = {sampling_rate:.2f}, T = {steps})"
    whole = "measured, full batch (T = {steps})"
    head = ["claimed ε", sampled.format_map(part[0]), whole.format_map(full[0])]
    pairs = zip(part, full, strict=True)
    return grid(head, [[f"{one['epsilon']:g}", bounds(one), bounds(two)] for one, two in pairs])
