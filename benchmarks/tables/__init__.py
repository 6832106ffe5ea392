"""Tables of docs/*.md, from benchmarks/results.

A table is replaced between two comments of a document. A missing result of the GPU becomes a line with the
command that measures it.
"""

from collections.abc import Callable
from typing import Any

from benchmarks.common import REPOSITORY, RESULTS
from benchmarks.tables import (
    choices,
    costs,
    findings,
    intervals,
    peers,
    privacy,
    reliability,
    units,
)
from benchmarks.tables.markdown import filled, start
from benchmarks.tables.theory import theory_effects, theory_rules
from dpsweep.base.files import read_json, write_text

__all__ = ["DOCUMENTS", "TABLES", "filled", "start", "tables", "write_tables"]

DOCUMENTS = sorted((REPOSITORY / "docs").glob("*.md"))
TABLES: dict[str, tuple[str, Callable[[dict[str, Any]], list[str]]]] = {
    "calibration": ("calibration", privacy.calibration),
    "step cost, CPU": ("step_cost_cpu", costs.step_cost),
    "head, advice": ("findings", findings.head_advice),
    "head, C": ("findings", findings.head_bounds),
    "head, B": ("findings", findings.head_batch_sizes),
    "FiLM, advice": ("film/film", findings.film_advice),
    "FiLM, C and B": ("film/film", findings.film_costs),
    "FiLM, theory": ("film/film", findings.film_plateau),
    "fashion, published": ("fashion/fashion-mnist", choices.published),
    "fashion, C and B": ("fashion/fashion-mnist", choices.bounds_and_sizes),
    "optimizers": ("fashion/optimizers", choices.optimizers),
    "units": ("units/units", units.cost_of_units),
    "views": ("units/units", units.gain_of_views),
    "advice by pair": ("recommend", choices.advice_by_pair),
    "advice in the loop": ("recommend", choices.advice_in_the_loop),
    "longer training": ("recommend", choices.longer_training),
    "errors of verdicts": ("verdicts", intervals.errors),
    "power of verdicts": ("verdicts", intervals.power),
    "planted bugs": ("planted_bugs", reliability.planted_bugs),
    "kills": ("kills", reliability.kills),
    "histories": ("histories", reliability.histories),
    "peers, layers": ("peers/layers", peers.layers),
    "peers, budgets": ("peers/budgets", peers.budgets),
    "peers, speed": ("peers/speed", peers.speed),
}
"""The result file and the renderer of each table."""
GPU = {
    "Checks": ("right_*", costs.right_on_gpu),
    "The paper's row": ("cifar100_*", costs.cifar100_on_gpu),
    "Steps": ("step_*", costs.step_cost),
    "A cell": ("cell*", costs.cell_on_gpu),
    "Noise": ("noise_cost", costs.noise_cost),
}


def tables() -> dict[str, list[str]]:
    """Return the lines of every table, by its name in the documents."""

    def read(name: str) -> dict[str, Any]:
        found: dict[str, Any] = read_json(RESULTS / f"{name}.json")
        return found

    of_heads, of_film = read("findings"), read("film/film")
    return {
        **{name: render(read(file)) for name, (file, render) in TABLES.items()},
        "plan": costs.plan(),
        "rules": findings.rules({"head": of_heads, "FiLM": of_film}),
        "FiLM beside a head": findings.compare_methods(of_film, of_heads),
        "GPU": _gpu_results(),
        "audit": privacy.audit(),
        "backbones": reliability.backbones(),
        "theory, effects of privacy": theory_effects(),
        "theory, rules": theory_rules(),
    }


def _gpu_results() -> list[str]:
    """Return the results of the GPU, each under its heading."""
    lines = []
    for heading, (files, render) in GPU.items():
        if found := sorted((RESULTS / "gpu").glob(f"{files}.json")):
            lines += [f"### {heading}", "", *render(_join(list(map(read_json, found)))), ""]
    return lines or ["*Open: nothing has been measured yet. `make gpu` fills this in.*"]


def _join(pieces: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the pieces of a result as one result, with the rows of all.

    Raises:
        ValueError: the pieces come from different machines, or from different versions of a package.
    """
    environment: dict[str, Any] = {"versions": {}}
    for piece in pieces:
        # A package may be missing on a machine, such as Opacus.
        machine = piece["environment"]
        for known, found in (environment, machine), (environment["versions"], machine["versions"]):
            for key, value in found.items():
                if key not in {"load_before", "versions"} and known.setdefault(key, value) != value:
                    raise ValueError(
                        f"one table from two machines: {piece['piece']} has {key} {value}, an earlier "
                        f"piece has {known[key]}. Delete one of them and measure it again"
                    )
    environment["load_before"] = pieces[0]["environment"]["load_before"]
    rows = [row for piece in pieces for row in piece.get("rows", [])]
    device = environment["device"]
    return {"environment": environment, "device": device, "pieces": pieces, "rows": rows}


def write_tables() -> None:
    """Replace the tables of all documents."""
    made = tables()
    for path in DOCUMENTS:
        write_text(path, filled(path.read_text(encoding="utf-8"), made))
