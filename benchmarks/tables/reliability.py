"""Tables of reliability: killed runs, random histories, planted bugs, networks."""

from collections import Counter
from typing import Any

import pandas as pd

from benchmarks.common import RESULTS
from benchmarks.tables.markdown import describe_environment, grid

Result = dict[str, Any]


def kills(result: dict[str, Any]) -> list[str]:
    """Return the outcomes after kills and at the end of histories."""
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
        f"{failed} of {len(ends)} histories ended with a failure. "
        f"{describe_environment(result['environment'])}",
    ]


def histories(result: Result) -> list[str]:
    """Return the numbers of histories, wrong ones, jobs and needless jobs of each version, and the events."""
    everything = result["histories"]
    events = Counter(event.split(":")[0] for each in everything for event in each["events"])
    versions: dict[str, list[Result]] = {}
    for each in everything:
        versions.setdefault(each["version"], []).append(each)
    if len(versions) > 1:
        versions["all"] = everything
    rows = [[version, *_counts(found)] for version, found in versions.items()]
    counted = ", ".join(f"{name.replace('_', ' ')} {events[name]}" for name in sorted(events))
    return [
        *grid(["version", "histories", "not as a fresh run", "jobs", "needless ones"], rows),
        "",
        f"Events: {counted}. {describe_environment(result['environment'])}",
    ]


def _counts(histories: list[Result]) -> list[str]:
    """Return the numbers of histories, wrong ones, jobs and needless jobs (if counted)."""
    wrong = sum(bool(each["wrong"]) for each in histories)
    counted = [each for each in histories if "jobs" in each]
    jobs, needless = (sum(each[what] for each in counted) for what in ("jobs", "needless"))
    of_jobs = [f"{jobs}", f"{needless}"] if counted else ["not counted", "not counted"]
    return [f"{len(histories)}", f"{wrong}", *of_jobs]


def planted_bugs(result: dict[str, Any]) -> list[str]:
    """Return the number of bugs that the fast tests catch, and every bug that they miss."""
    planted = Counter(row["package"] for row in result["rows"])
    survived = [row for row in result["rows"] if row["caught_by"] is None]
    minutes = sum(row["seconds"] for row in result["rows"]) / 60
    return [
        f"Of {planted.total()} bugs in {len(planted)} packages, at least {min(planted.values())} in each, "
        f"{planted.total() - len(survived)} are caught, in {minutes:.0f} minutes of processor time.",
        *(f"Not caught: {row['bug']} (`{row['module']}`)." for row in survived),
    ]


def backbones() -> list[str]:
    """Return the networks by their engine for each method, or the layers that a method does not find."""
    rows = pd.read_csv(RESULTS / "gradients.csv")
    rows[["name", "method"]] = rows["case"].str.split(n=1, expand=True)
    nothing = {"film": "no normalisation layers", "lora": "no linear layers"}
    shown = rows["engine"].where(rows["outcome"] == "agrees", rows["method"].map(nothing))
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, engines in shown.groupby(rows["name"], sort=False):
        alike.setdefault(tuple(engines), []).append(f"`{name}`")
    head = ["FiLM", "LoRA", "all parameters", "head", "networks"]
    lines = [[*engines, ", ".join(names)] for engines, names in alike.items()]
    return [*grid(head, lines, numbers=False), "", f"{rows['name'].nunique()} networks."]
