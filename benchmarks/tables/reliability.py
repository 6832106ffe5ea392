"""What is tested: runs that were killed, other histories, planted bugs, networks; and how long tests take."""

import csv
from collections import Counter
from typing import Any

from benchmarks.common import RESULTS
from benchmarks.tables.markdown import grid, texts, where

_SLOWEST = 5


def kills(result: dict[str, Any]) -> list[str]:
    """Outcome of killed runs, and of whole histories."""
    kills = [each for history in result["histories"] for each in history["kills"]]
    ends = [history["end"] for history in result["histories"]]
    rows = [
        [
            name,
            f"{len(found)}",
            *(f"{sum(bool(each[what]) for each in found)}" for what in ("hangs", "left", "wrong")),
        ]
        for name, found in (("after a kill", kills), ("at the end of a history", ends))
    ]
    failed = sum(bool(end["exit"]) for end in ends)
    return [
        *grid(["", "runs", "hangs", "a process is left", "an output differs"], rows),
        "",
        f"{failed} of {len(ends)} histories ended with a failure. {where(result['environment'])}",
    ]


def histories(result: dict[str, Any]) -> list[str]:
    """How many histories ended as a fresh run, what happened in them, and which jobs were needless."""
    lived = result["histories"]
    events = [event.split(":")[0] for each in lived for event in each["events"]]
    versions: dict[str, list[dict[str, Any]]] = {}
    for each in lived:
        versions.setdefault(each["version"], []).append(each)
    rows = [[version, *_lived(found)] for version, found in (versions | {"all": lived}).items()]
    counted = ", ".join(
        f"{name.replace('_', ' ')} {events.count(name)}" for name in sorted(set(events))
    )
    return [
        *grid(["version", "histories", "not as a fresh run", "jobs", "needless ones"], rows),
        "",
        f"Events: {counted}. {where(result['environment'])}",
    ]


def _lived(histories: list[dict[str, Any]]) -> list[str]:
    """How many, how many of them wrong, and their jobs where they were counted."""
    wrong = sum(bool(each["wrong"]) for each in histories)
    counted = [each for each in histories if "jobs" in each]
    jobs, needless = (sum(each[what] for each in counted) for what in ("jobs", "needless"))
    return [
        *(f"{len(histories)}", f"{wrong}"),
        *((f"{jobs}", f"{needless}") if counted else ("not counted", "not counted")),
    ]


def slowest_tests(result: dict[str, Any]) -> list[str]:
    """The tests that take longest, and how long the runs of pytest took."""
    rows = [[f"`{row['test']}`", f"{row['seconds']:.0f} s"] for row in result["tests"][:_SLOWEST]]
    runs = "; ".join(f"{run['outcome']} in {run['seconds'] / 60:.0f} min" for run in result["runs"])
    return [*grid(["test", "time"], rows), "", f"Runs of pytest: {runs}."]


def planted_bugs(result: dict[str, Any]) -> list[str]:
    """How many bugs the fast tests see, and each that they do not."""
    planted = Counter(row["package"] for row in result["rows"])
    survived = [row for row in result["rows"] if row["caught_by"] is None]
    minutes = sum(row["seconds"] for row in result["rows"]) / 60
    return [
        f"Of {planted.total()} bugs in {len(planted)} packages, at least {min(planted.values())} in each, "
        f"{planted.total() - len(survived)} are caught, in {minutes:.0f} minutes of processor time.",
        *(f"Not caught: {row['bug']} (`{row['module']}`)." for row in survived),
    ]


def backbones(result: dict[str, Any]) -> list[str]:
    """The engine for each method, or what the method does not find, and the networks that have these."""
    nothing = {"film": "no normalisation layers", "lora": "no linear layers"}
    alike: dict[tuple[str, ...], list[str]] = {}
    for row in result["rows"]:
        engines = (
            each.get("engine", nothing.get(name, "none")) for name, each in row["methods"].items()
        )
        alike.setdefault(tuple(engines), []).append(f"`{row['network']}`")
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    return [
        *texts(
            ["FiLM", "LoRA", "all parameters", "head", "networks"],
            [[*engines, ", ".join(names)] for engines, names in alike.items()],
        ),
        "",
        f"{len(result['rows'])} networks, with {versions}.",
    ]


def gradients() -> list[str]:
    """How many layers, adapters and text classifiers have the gradients of a loop in float64."""
    with (RESULTS / "gradients.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    names = {
        "layers": "layers of torch and timm, in all their settings",
        "adapters": "methods of peft, in four small networks",
        "texts": "text classifiers of transformers, each with four methods",
    }
    lines = []
    for kind, name in names.items():
        outcomes = Counter(row["outcome"] for row in rows if row["kind"] == kind)
        counts = [outcomes[each] for each in ("agrees", "refused", "wrong")]
        lines.append([name, *map(str, (sum(counts), *counts))])
    classifiers = {row["case"].split()[0] for row in rows if row["kind"] == "texts"}
    film = [row for row in rows if row["kind"] == "texts" and row["case"].endswith(" film")]
    return [
        *grid(["kind", "cases", "agree", "refused with a reason", "wrong"], lines),
        "",
        f"Of {len(classifiers)} kinds of text classifiers, {sum(row['outcome'] == 'agrees' for row in film)} "
        "train with FiLM.",
    ]
