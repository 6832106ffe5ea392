"""What is tested: runs that were killed, other histories, planted bugs, networks; and how long tests take."""

import csv
from collections import Counter
from typing import Any

from benchmarks.common import RESULTS
from benchmarks.tables.markdown import grid, texts, where

_SLOWEST = 15


def kills(result: dict[str, Any]) -> list[str]:
    """Outcome of killed runs, by what was killed and how, and of whole histories."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for history in result["histories"]:
        for each in history["kills"]:
            kind = f"{each['victim']}, {each['signal']}" if "victim" in each else each["hit"]
            kinds.setdefault(kind, []).append(each)
    kinds = dict(sorted(kinds.items()))
    kinds["all kills"] = [each for found in kinds.values() for each in found]
    ends = [history["end"] for history in result["histories"]]
    kinds["ends of histories"] = ends
    rows = [
        [
            kind,
            f"{len(found)}",
            *(f"{sum(bool(each[what]) for each in found)}" for what in ("hangs", "left", "wrong")),
        ]
        for kind, found in kinds.items()
    ]
    failed = sum(bool(end["exit"]) for end in ends)
    return [
        *grid(["", "runs", "hangs", "a process is left", "an output differs"], rows),
        "",
        f"{failed} of {len(ends)} histories ended with a failure. "
        f"{_commits(result['histories'])} {where(result['environment'])}",
    ]


def histories(result: dict[str, Any]) -> list[str]:
    """How many histories ended as a fresh run, and what happened in them."""
    lived = result["histories"]
    events = [event.split(":")[0] for each in lived for event in each["events"]]
    wrong = sum(bool(each["wrong"]) for each in lived)
    counted = ", ".join(
        f"{name.replace('_', ' ')} {events.count(name)}" for name in sorted(set(events))
    )
    return [
        *grid(["histories", "not as a fresh run"], [[f"{len(lived)}", f"{wrong}"]]),
        "",
        f"Events: {counted}. {_commits(lived)} {where(result['environment'])}",
    ]


def _commits(pieces: list[dict[str, Any]]) -> str:
    """Where the pieces of a campaign were made."""
    found = dict.fromkeys(each.get("commit", "earlier commits") for each in pieces)
    return f"Made at {', '.join(found)}."


def slowest_tests(result: dict[str, Any]) -> list[str]:
    """The tests that take longest, and how long the runs of pytest took."""
    rows = [[f"`{row['test']}`", f"{row['seconds']:.0f} s"] for row in result["tests"][:_SLOWEST]]
    runs = "; ".join(f"{run['outcome']} in {run['seconds'] / 60:.0f} min" for run in result["runs"])
    return [*grid(["test", "time"], rows), "", f"Runs of pytest: {runs}."]


def planted_bugs(result: dict[str, Any]) -> list[str]:
    """How many bugs the fast tests see, package by package, and each that they do not."""
    planted = Counter(row["package"] for row in result["rows"])
    survived = [row for row in result["rows"] if row["caught_by"] is None]
    missed = Counter(row["package"] for row in survived)
    rows = [
        [
            "modules beside the packages" if name == "dpsweep" else f"`{name}`",
            f"{count}",
            f"{count - missed[name]}",
        ]
        for name, count in sorted(planted.items())
    ]
    minutes = sum(row["seconds"] for row in result["rows"]) / 60
    return [
        *grid(
            ["package", "bugs", "caught"],
            [*rows, ["all", f"{planted.total()}", f"{planted.total() - len(survived)}"]],
        ),
        "",
        f"It took {minutes:.0f} minutes of processor time.",
        *(f"Not caught: {row['bug']} (`{row['module']}`)." for row in survived),
    ]


def backbones(result: dict[str, Any]) -> list[str]:
    """The engine of every network and method, or what the method does not find."""
    nothing = {"film": "no normalisation layers", "lora": "no linear layers"}
    rows = [
        [
            f"`{row['network']}`" + (" (texts)" if row["library"] == "transformers" else ""),
            *(
                each.get("engine", nothing.get(name, "none"))
                for name, each in row["methods"].items()
            ),
        ]
        for row in result["rows"]
    ]
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    return [
        *texts(["network", "FiLM", "LoRA", "all parameters", "head"], rows),
        "",
        f"{len(rows)} networks, with {versions}.",
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
