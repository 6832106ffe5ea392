"""Findings of the doctor: how the steps of a kind of job went, and what does not work."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STEPS = ("request", "start", "snakemake", "command", "gpu", "signal", "requeue")
"""Steps of a job, in this order, after Slurm has accepted its request"""

WITHOUT_GPU = STEPS[:4]


def write_step(path: Path, step: str, found: str, **more: float) -> None:
    """Add a step that a job has made to the file that tells of them.

    Args:
        path: of that file; a line is a step.
        step: its name; see `STEPS`.
        found: what the step found, in words.
        more: what it measured, by name.
    """
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps({"step": step, "found": found} | more) + "\n")


def read_steps(path: Path) -> list[dict[str, Any]]:
    """The steps that a job has written; the last one may still be on its way."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except OSError:
        return []
    return [json.loads(line) for line in lines if line.endswith("}\n")]


@dataclass(frozen=True)
class Fault:
    """Something that does not work."""

    check: str
    """what it is about, in a word: account, partition, setup, signal, ..."""
    found: str
    """what was found, with the words of who said so"""
    remedy: str
    """what to change"""


@dataclass
class Patient:
    """A kind of job, or this machine, and how its steps went."""

    name: str
    steps: tuple[str, ...]
    passed: dict[str, str] = field(default_factory=dict)
    """step -> what was found"""
    problems: list[Fault] = field(default_factory=list)
    waits: str = ""
    """why its job waits in the queue, where that is no mistake"""

    @property
    def next_step(self) -> str | None:
        """The first step that was not made; None where all were."""
        return next((step for step in self.steps if step not in self.passed), None)

    def mark(self, step: str) -> str:
        """How a step went, for a table: of those that were not made, the first one tells why."""
        if step not in self.steps:
            return ""
        if step in self.passed:
            return "ok"
        if step != self.next_step:
            return "-"
        return "waits" if self.waits else "FAILED"
