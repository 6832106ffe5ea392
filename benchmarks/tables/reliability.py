"""Outcome of studies that were killed, and of those that live through other events."""

from typing import Any

from benchmarks.tables.markdown import grid, where


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
