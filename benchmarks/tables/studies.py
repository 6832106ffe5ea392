"""Cost of a whole study, from its plan to its figures."""

from typing import Any

from benchmarks.common import REPOSITORY
from benchmarks.tables.markdown import grid, where
from dpsweep.planning.plan import Plan
from dpsweep.planning.status import Status
from dpsweep.study import load_study
from dpsweep.study.paths import Paths


def plan() -> list[str]:
    """Cells, trials and estimated GPU hours of the main targets of the paper's study, from nothing."""
    study = load_study(REPOSITORY / "config.yaml")
    paths = Paths(REPOSITORY / "nowhere")  # a folder that is not there: nothing is done yet
    status = Status(study, paths)

    def row(name: str, targets: list[str]) -> list[str]:
        estimates = Plan(study, paths, targets, status=status).estimates().values()
        hours = sum(each.seconds for each in estimates) / 3600
        cells, trials = (
            sum(getattr(estimate, each) for estimate in estimates) for each in ("cells", "trials")
        )
        return [
            name,
            f"{cells:,}",
            f"{trials:,}",
            f"{hours:,.0f}" if hours >= 10 else f"{hours:.1f}",
        ]

    rows = [row("everything", ["all"])]
    main = (name for name in (*study.figures, *study.tables) if name.startswith(("fig", "tab1")))
    rows += [row(f"`{name}`", [name]) for name in main]
    return grid(["target", "cells", "trials", "GPU hours (estimate)"], rows)


def scale(result: dict[str, Any]) -> list[str]:
    """Cost of planning and of the pages of studies of many cells."""
    sizes = list(result["calls"])
    rows = [
        [
            name,
            *(
                f"{result['calls'][size][name]['cpu_seconds']:.1f} s, "
                f"{result['calls'][size][name]['megabytes']:.0f} MB"
                for size in sizes
            ),
        ]
        for name in result["calls"][sizes[0]]
    ]
    return [
        *grid(["processor time, memory", *(f"{int(size):,} cells" for size in sizes)], rows),
        "",
        "Problems of 2,000 cells with 10 synthetic trials each; of a page that is opened, the size of its "
        f"file. {where(result['environment'])}",
    ]
