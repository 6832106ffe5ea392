"""Every table of the documents: its result, the command that measures it, and what renders it."""

from collections.abc import Callable
from typing import Any

from benchmarks.common import REPOSITORY, RESULTS
from benchmarks.tables import film, head
from benchmarks.tables.choices import longer_training, price, recommendation, selection
from benchmarks.tables.fashion import advice, bounds_and_sizes, optimizers, published
from benchmarks.tables.gpu import cell_on_gpu, cifar100_on_gpu, right_on_gpu
from benchmarks.tables.intervals import errors, power
from benchmarks.tables.markdown import filled
from benchmarks.tables.privacy import audit, calibration
from benchmarks.tables.reliability import (
    backbones,
    gradients,
    histories,
    kills,
    planted_bugs,
    slowest_tests,
)
from benchmarks.tables.rules import rules
from benchmarks.tables.steps import features, noise_cost, step_cost
from benchmarks.tables.studies import plan, scale
from benchmarks.tables.theory import (
    bounds_choice,
    bounds_progress,
    theory_effects,
    theory_rules,
)
from dpsweep.base.files import read_json, write_text

DOCUMENTS = [REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
CALIBRATION = ("calibration", "calibration_comparison")
RECOMMEND = "python -m benchmarks.evidence.recommend"
HEAD, KEEP_HEAD = "findings.json", "make findings"
FILM, KEEP_FILM = "film/film.json", "make film"
FASHION, KEEP_FASHION = "fashion/fashion-mnist.json", "python -m benchmarks.findings.fashion"
TABLES: dict[str, tuple[str, str, Callable[[dict[str, Any]], list[str]]]] = {
    "step cost, CPU": ("step_cost_cpu.json", "make bench", step_cost),
    "features": ("features.json", "python -m benchmarks.speed.features", features),
    "backbones": ("backbones.json", "python -m benchmarks.evidence.backbones", backbones),
    "scale": ("scale.json", "python -m benchmarks.speed.scale 4000 20000 50000", scale),
    "noise cost, CPU": ("noise_cost_cpu.json", "python -m benchmarks.speed.noise_cost", noise_cost),
    "head, advice": (HEAD, KEEP_HEAD, head.advice),
    "head, C": (HEAD, KEEP_HEAD, head.bounds),
    "head, B": (HEAD, KEEP_HEAD, head.batch_sizes),
    "FiLM, advice": (FILM, KEEP_FILM, film.advice),
    "FiLM, C and B": (FILM, KEEP_FILM, film.costs),
    "FiLM, theory": (FILM, KEEP_FILM, film.plateau),
    "planted bugs": ("planted_bugs.json", "make planted-bugs", planted_bugs),
    "slowest tests": ("durations.json", "python -m benchmarks.durations run.log", slowest_tests),
    "errors of verdicts": ("verdicts.json", "python -m benchmarks.evidence.verdicts", errors),
    "power of verdicts": ("verdicts.json", "python -m benchmarks.evidence.verdicts", power),
    "recommendation": ("recommend.json", RECOMMEND, recommendation),
    "longer training": ("recommend.json", RECOMMEND, longer_training),
    "progress of steps": ("bounds.json", "python -m benchmarks.evidence.bounds", bounds_progress),
    "bound of Koloskova et al.": (
        "bounds.json",
        "python -m benchmarks.evidence.bounds",
        bounds_choice,
    ),
    "price": (
        "price.json",
        "python -m benchmarks.evidence.price studies/frozen-features.yaml 20newsgroups_minilm_head 8",
        price,
    ),
    "selection": ("selection.json", "python -m benchmarks.evidence.selection", selection),
    "fashion, published": (FASHION, KEEP_FASHION, published),
    "fashion, C and B": (FASHION, KEEP_FASHION, bounds_and_sizes),
    "fashion, advice": (FASHION, KEEP_FASHION, advice),
    "optimizers": ("fashion/optimizers.json", KEEP_FASHION, optimizers),
    "kills": ("kills.json", "python -m benchmarks.campaigns.kills 300", kills),
    "histories": ("histories.json", "python -m benchmarks.campaigns.histories 30", histories),
}


def tables() -> dict[str, list[str]]:
    """The lines of every table, by the name that its place in a document has."""
    head_numbers, film_numbers = (read_json(RESULTS / file) for file in (HEAD, FILM))
    lines = {
        "plan": plan(),
        "rules": rules({"head": head_numbers, "FiLM": film_numbers}),
        "FiLM beside a head": film.beside_a_head(film_numbers, head_numbers),
        "GPU": _on_a_gpu(),
        "audit": audit(),
        "gradients": gradients(),
        "theory, effects of privacy": theory_effects(),
        "theory, rules": theory_rules(),
        "calibration": calibration(
            {name: read_json(RESULTS / f"{name}.json") for name in CALIBRATION}
        ),
    }
    for name, (file, command, render) in TABLES.items():
        found = sorted(RESULTS.glob(file))
        lines[name] = (
            render(_joined([read_json(path) for path in found]))
            if found
            else [f"*Open: not measured yet. `{command}` fills this in.*"]
        )
    return lines


_GPU = {
    "Checks": ("right_*", right_on_gpu),
    "The paper's row": ("cifar100_*", cifar100_on_gpu),
    "Steps": ("step_*", step_cost),
    "A cell": ("cell*", cell_on_gpu),
    "Noise": ("noise_cost", noise_cost),
}


def _on_a_gpu() -> list[str]:
    """What was measured on a GPU, each under its heading."""
    lines = []
    for heading, (files, render) in _GPU.items():
        if found := sorted((RESULTS / "gpu").glob(f"{files}.json")):
            lines += [
                f"### {heading}",
                "",
                *render(_joined([read_json(path) for path in found])),
                "",
            ]
    return lines or ["*Open: nothing has been measured yet. `make gpu` fills this in.*"]


def _joined(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The only result, or the pieces of one: what they have measured, and the rows of all."""
    if "piece" not in found[0]:
        return found[0]
    rows = [row for piece in found for row in piece.get("rows", [])]
    environment = found[0]["environment"]
    for piece in found:
        for key, value in piece["environment"].items():
            if key != "load_before" and value != environment[key]:
                raise ValueError(
                    f"one table from two machines: {found[0]['piece']} has {key} {environment[key]}, "
                    f"{piece['piece']} has {value}. Delete one of them and measure it again"
                )
    device = environment["device"]
    return {"environment": environment, "device": device, "pieces": found, "rows": rows}


def write_tables() -> None:
    """Replace the tables of all documents."""
    made = tables()
    for path in DOCUMENTS:
        write_text(path, filled(path.read_text(encoding="utf-8"), made))
