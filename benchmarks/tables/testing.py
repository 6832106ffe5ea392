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
    """Which test sees which bug first."""
    rows = [
        [
            row["group"],
            row["bug"],
            "**survived**" if row["caught_by"] is None else f"`{row['caught_by']}`",
        ]
        for row in result["rows"]
    ]
    caught = sum(row["caught_by"] is not None for row in result["rows"])
    return [
        *texts(["part", "bug", "the first test that fails"], rows),
        "",
        f"{caught} of {len(rows)} bugs are caught; the run takes {result['minutes']:.0f} minutes.",
    ]
