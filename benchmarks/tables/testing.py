"""How long the tests take, and which bugs they see."""

from typing import Any

from benchmarks.tables.markdown import grid, texts

_SLOWEST = 15


def slowest_tests(result: dict[str, Any]) -> list[str]:
    """The tests that take longest, and how long the runs of pytest took."""
    rows = [[f"`{row['test']}`", f"{row['seconds']:.0f} s"] for row in result["tests"][:_SLOWEST]]
    runs = "; ".join(f"{run['outcome']} in {run['seconds'] / 60:.0f} min" for run in result["runs"])
    return [*grid(["test", "time"], rows), "", f"Runs of pytest: {runs}."]


def planted_bugs(result: dict[str, Any]) -> list[str]:
    """Which test sees which bug first, package by package."""
    rows = result["rows"]
    caught = sum(row["caught_by"] is not None for row in rows)
    minutes = sum(row["seconds"] for row in rows) / 60
    lines = [
        f"{caught} of {len(rows)} bugs are caught, in {minutes:.0f} minutes of processor time."
    ]
    for package in sorted({row["package"] for row in rows}):
        cells = [
            [
                f"`{row['module']}`",
                row["bug"],
                "**survived**" if row["caught_by"] is None else f"`{row['caught_by']}`",
            ]
            for row in rows
            if row["package"] == package
        ]
        name = "Modules beside the packages" if package == "dpsweep" else f"`dpsweep.{package}`"
        lines += ["", f"## {name}: {len(cells)} bugs", ""]
        lines += texts(["module", "bug", "the first test that fails"], cells)
    return lines
