"""How far a study is, read from its files alone: no queue is asked, and nothing has to run.

A cell is *done* when its outputs are there: their names tell the settings that they were made for.
Else its log tells: it ends with an error (*failed*), or it was written to lately (*running*), or
not (*stopped*: terminated, killed, requeued, or given up). A cell without a log is *waiting*, and so
is one that was done before: its outputs were deleted, or belong to an earlier version of the study.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from dpsweep.base.files import read_json
from dpsweep.base.units import columns, count, duration
from dpsweep.config.cells import Cell
from dpsweep.planning.cost import ProblemCost
from dpsweep.planning.device import GPU, Device
from dpsweep.planning.failures import ENDED, STOPPED, Failure, describe, error_lines, tail
from dpsweep.planning.outputs import Outputs
from dpsweep.study import Study
from dpsweep.study.paths import Paths
from dpsweep.study.trials import trials_per_cell

State = Literal["done", "running", "failed", "stopped", "waiting"]
_RECENT_SECONDS = 60.0
STATES: tuple[State, ...] = ("done", "running", "failed", "stopped", "waiting")


@dataclass
class Progress:
    """Cells of a problem or a figure by state, and their time on a GPU or core in seconds."""

    cells: Counter[State] = field(default_factory=Counter)
    spent: float = 0.0
    left: float = 0.0


class Status:
    """The state of every cell of a study.

    Args:
        study: the study.
        paths: its files.
        now: the time to compare logs with; by default the present.
        device: what the first estimates are for; times are counted in its unit.
        endings: what Snakemake and Slurm said of jobs that failed (`dpsweep.planning.failures`).
    """

    def __init__(
        self,
        study: Study,
        paths: Paths,
        now: float | None = None,
        device: Device = GPU,
        endings: Mapping[Path, str] | None = None,
    ) -> None:
        self._study, self._paths, self._unit = study, paths, device.unit
        self._now = time.time() if now is None else now
        self._outputs = Outputs(study, paths)
        self.outputs = {output.name: output for output in self._outputs.every()}
        """those of the study, by name"""
        self._endings = endings or {}
        self.lacking = {name for name, each in self.outputs.items() if each.missing()}
        """what is missing, by name"""
        self.states: dict[Cell, State] = {}
        self._spent: dict[Cell, float] = {}
        # Seconds of a whole cell, from its trials so far: the first ones of a study tell a lot.
        measured: dict[Cell, float] = {}
        for cell in study.all_cells():
            timing = _read_timing(paths.cell_timing(study, cell))
            self.states[cell] = self._state(cell)
            self._spent[cell] = float(timing.get("trial_seconds", 0.0))
            # The times lie among the logs, which may have been removed.
            if self.states[cell] == "done" and self._spent[cell]:
                measured[cell] = self._spent[cell]
            elif self.states[cell] != "waiting" and timing.get("trials"):
                whole = trials_per_cell(study, study.sweep_of(cell))
                measured[cell] = self._spent[cell] * whole / timing["trials"]
        self.forecast = Forecast(study, measured, device)

    def of(self, cells: Iterable[Cell]) -> Progress:
        """Sum up some of the study's cells."""
        progress = Progress()
        for cell in cells:
            state = self.states[cell]
            progress.cells[state] += 1
            progress.spent += self._spent[cell]
            if state != "done":
                begun = self._spent[cell] if state in ("running", "stopped", "failed") else 0.0
                progress.left += max(0.0, self.forecast.seconds(cell) - begun)
        return progress

    def problems(self) -> dict[str, Progress]:
        """Progress by problem."""
        return {name: self.of(self._study.problem_cells(name)) for name in self._study.problems}

    def figures(self) -> dict[str, Progress]:
        """Progress by figure, over the cells that it draws."""
        return {
            name: self.of(self._outputs.drawn_cells(figure))
            for name, figure in self._study.figures.items()
        }

    def failures(self) -> list[Failure]:
        """Jobs of every stage that ended without their output, cells first."""
        found = [
            describe(
                f"{cell.problem}/{cell.name}",
                self._paths.cell_log(self._study, cell),
                self._now,
                self._endings,
            )
            for cell, state in self.states.items()
            if state in ("failed", "stopped")
        ]
        found += (
            describe(name, log, self._now)
            for name, log in self._other_logs()
            if error_lines(tail(log))
        )
        return found

    def running(self) -> list[str]:
        """Jobs other than cells that have written to their log in the last minute: its last line."""
        # Names have a folder where logs may have none.
        lacking = {name.replace("/", "_") for name in self.lacking}
        return [
            f"{name}: {lines[-1].partition(' ')[2]}"
            for name, log in self._other_logs()
            if self._now - log.stat().st_mtime < _RECENT_SECONDS
            and name.replace("/", "_") in lacking
            and (lines := tail(log))
            and not error_lines(lines)
            and not STOPPED.search(lines[-1])
        ]

    def _other_logs(self) -> Iterator[tuple[str, Path]]:
        """The logs of jobs other than cells, with the names of these."""
        logs = self._paths.results / "logs"
        for log in sorted(logs.rglob("*.log")):
            inside = log.relative_to(logs)
            if inside.parts[0] not in ("cells", "slurm"):
                yield str(inside.with_suffix("")), log

    def lines(self, gpus: int = 0) -> Iterator[str]:
        """The status as text for a terminal.

        Args:
            gpus: of this machine; that many jobs train at once, or those that do now.
        """
        everything = self.of(self.states)
        if figures := self.figures():
            yield from _table("figure", figures)
            yield ""
        yield from _table("problem", self.problems() | {"all": everything})
        yield from (f"running: {line}" for line in self.running())
        at_once = gpus or everything.cells["running"]
        if everything.left:
            yield (
                f"{duration(everything.left)} of {self._unit} time left; with {max(at_once, 1)} at once: "
                f"{duration(everything.left / max(at_once, 1))}. {self.forecast.basis}"
            )
        if unfinished := self.failures():
            yield f"{len(unfinished)} failed or stopped: `dpsweep status --failed` says why and where."

    def _state(self, cell: Cell) -> State:
        if output_name(cell) not in self.lacking:
            return "done"
        log = self._paths.cell_log(self._study, cell)
        try:
            written = log.stat().st_mtime
        except FileNotFoundError:
            # A job that Slurm has refused was never started.
            return "failed" if log.absolute() in self._endings else "waiting"
        lines = tail(log)
        if lines and ENDED in lines[-1]:
            return "waiting"  # its outputs were removed since
        if error_lines(lines):
            return "failed"
        # A job writes to its log at every trial and at every checkpoint.
        silence = 120 * self._study.training.checkpoint_minutes + 120
        if (lines and STOPPED.search(lines[-1])) or self._now - written > silence:
            return "stopped"
        return "running"


class Forecast:
    """Seconds on a GPU or core that a cell will take: measured on its kind, or estimated."""

    def __init__(self, study: Study, measured: dict[Cell, float], device: Device) -> None:
        self._study = study
        self.cost = cache(lambda problem: ProblemCost(study, problem, device))
        """of the jobs of a problem"""
        self._estimate = cache(self._estimated)
        kinds: dict[tuple[str, int, int], list[float]] = {}
        for cell, seconds in measured.items():
            kinds.setdefault(self._kind(cell), []).append(seconds)
        self._means = {kind: sum(values) / len(values) for kind, values in kinds.items()}
        estimated = sum(self._estimate(*kind) * len(values) for kind, values in kinds.items())
        spent = sum(measured.values())
        self.ratio = spent / estimated if spent else 1.0
        cells = count(len(measured), "cell")
        self.basis = (
            f"(Measured on {cells} of this study: {self.ratio:.2g} times the first estimate.)"
            if spent
            else "(A first estimate; nothing is measured yet.)"
        )

    def seconds(self, cell: Cell) -> float:
        """Estimate the time of a cell that is not done."""
        kind = self._kind(cell)
        mean = self._means.get(kind)
        return self.ratio * self._estimate(*kind) if mean is None else mean

    def _kind(self, cell: Cell) -> tuple[str, int, int]:
        """Features that cells of equal cost share: problem, epochs, number of trials."""
        return cell.problem, cell.epochs, trials_per_cell(self._study, self._study.sweep_of(cell))

    def _estimated(self, problem: str, epochs: int, trials: int) -> float:
        return self.cost(problem).cell(epochs, trials).seconds


def _read_timing(file: Path) -> dict[str, Any]:
    """Return the time of a cell; empty where its job wrote none, or the file is damaged."""
    try:
        found = read_json(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def output_name(cell: Cell) -> str:
    """The name of the output that a cell is."""
    return f"cells/{cell.problem}/{cell.name}"


def _table(title: str, rows: dict[str, Progress]) -> list[str]:
    table = [(title, *STATES, "time spent", "time left")]
    for name, each in rows.items():
        cells = (str(each.cells[state]) for state in STATES)
        table.append((name, *cells, duration(each.spent), duration(each.left)))
    return columns(table)
