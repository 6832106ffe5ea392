"""The progress of a study, and the plan of a run: the missing outputs of some targets, and their cost.

All is read from the files of the study; no queue is queried. Costs are estimates (`dpsweep.planning.cost`),
corrected by the times of finished cells.

A cell is *done* if its outputs exist; their names depend on its settings. It is *waiting* again if data,
network or noise were written later, because the next run then trains it anew. Without outputs its log
decides. It *failed* if the log ends with an error or a signal, or was not written to for some minutes (the
job was killed, or given up); before that it is *running*. A cell without a log, or with the log of a finished
job whose outputs were deleted, is *waiting*.
"""

import math
import re
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from dpsweep.base.files import read_json
from dpsweep.base.formatting import columns, count, duration, size
from dpsweep.planning.cost import GPU, Device, ProblemCost, backbone_bytes, input_bytes
from dpsweep.planning.outputs import GpuOutput, Output, Outputs
from dpsweep.study import Cell, Paths, Study
from dpsweep.study.messages import group_by_message, shorten
from dpsweep.study.release import Release

# The beginning of a line with the error of a job: dpsweep's own, or the last of a traceback.
_ERROR = re.compile(r"error: |(\w+\.)*\w*(Error|Exception)(: |$)")
STOPPED = re.compile(r"stopped by \w+, exit status \d+")
"""In the last line of a job that was ended by a signal (`dpsweep.training.processes`)."""
# A log line with a time: the job went on after all earlier lines.
_LOGGED = re.compile(r"\d\d:\d\d:\d\d ")
ENDED = "trials trained now"
"""Words in the last line of the log of a finished cell (`dpsweep.training.cell`)."""


def last_words(log: Path) -> tuple[str, bool]:
    """Return the error that ended a job, or the last line of its log, and whether the job has ended.

    It has ended by an error or a signal. A job that went on writes a line with a time behind an error.
    """
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    last = max((number for number, line in enumerate(lines) if _LOGGED.match(line)), default=0)
    # dpsweep's own error can quote an exception, so the first one counts.
    line = [*filter(_ERROR.match, lines[last:]), *lines[-1:], ""][0]
    return line, bool(_ERROR.match(line) or STOPPED.search(line))


State = Literal["done", "running", "failed", "waiting"]
STATES: tuple[State, ...] = ("done", "running", "failed", "waiting")


@dataclass
class Progress:
    """The cells of a problem or a figure by state, and their time on a GPU or core in seconds."""

    cells: Counter[State] = field(default_factory=Counter)
    spent: float = 0.0
    left: float = 0.0


class Status:
    """The state of every cell of a study.

    Args:
        study: the study.
        paths: its files.
        now: the time to compare logs with; by default the present.
        device: the device of the first estimates; times are counted in its unit.
        refused: problems whose sweeps do not run, because their data are private; cells of them that wait
            are not counted.
    """

    def __init__(
        self,
        study: Study,
        paths: Paths,
        now: float | None = None,
        device: Device = GPU,
        refused: Collection[str] = (),
    ) -> None:
        self._study, self._paths, self._unit = study, paths, device.unit
        self._now = time.time() if now is None else now
        self._refused = refused
        self._outputs = Outputs(study, paths)
        self.outputs = {output.name: output for output in self._outputs.every()}
        """all outputs of the study by name"""
        self.lacking = {name for name, each in self.outputs.items() if each.missing()}
        """the names of outputs with missing files"""
        self._written = cache(_time_of_writing)
        self.states: dict[Cell, State] = {}
        self._spent: dict[Cell, float] = {}
        self.new_trials: dict[Cell, int] = {}
        """the number of trials of each cell that the store does not have"""
        # Seconds of a whole cell, extrapolated from its first trials if it is not done.
        measured: dict[Cell, float] = {}
        for cell in study.all_cells():
            timing = _read_timing(paths.cell_timing(study, cell))
            self.states[cell] = self._state(cell)
            sweep = study.sweep_of(cell)
            grid, whole = study.sweeps[sweep], study.trials_per_cell(sweep)
            kept = sum(
                rate in grid.learning_rates and seed <= grid.seeds and paths.trial(key).exists()
                for rate, seed, key in timing.get("keys", [])
            )
            self.new_trials[cell] = max(0, whole - kept)
            # Of GPUs: a job of several is as long as each of them.
            self._spent[cell] = float(timing.get("trial_seconds", 0.0)) * timing.get("gpus", 1)
            # The times are in the folder of logs, which can be removed.
            if self.states[cell] == "done" and self._spent[cell]:
                measured[cell] = self._spent[cell]
            elif self.states[cell] != "waiting" and timing.get("trials"):
                measured[cell] = self._spent[cell] * whole / timing["trials"]
        self.forecast = Forecast(study, measured, device)

    def needed(self, asked: Iterable[Output]) -> list[Output]:
        """Return some outputs and all that they are made from, in the order of the study."""
        makers = {file: each for each in self.outputs.values() for file in each.files}
        found: dict[str, Output] = {}
        left = list(asked)
        while left:
            each = left.pop()
            if each.name not in found:
                found[each.name] = each
                left += [makers[file] for file in each.inputs]
        return [each for name, each in self.outputs.items() if name in found]

    def seconds_of_new_trials(self, cell: Cell) -> float:
        """Estimate the time of the trials of a cell that the store does not have."""
        whole = self._study.trials_per_cell(self._study.sweep_of(cell))
        return self.forecast.seconds(cell) * self.new_trials[cell] / whole

    def of(self, cells: Iterable[Cell]) -> Progress:
        """Sum up some of the study's cells."""
        progress = Progress()
        for cell in cells:
            state = self.states[cell]
            if state == "waiting" and cell.problem in self._refused:
                continue
            progress.cells[state] += 1
            progress.spent += self._spent[cell]
            if state != "done":
                begun = self._spent[cell] if state in ("running", "failed") else 0.0
                seconds = self.forecast.seconds(cell) - begun
                progress.left += max(0.0, seconds if begun else self.seconds_of_new_trials(cell))
        return progress

    def problems(self) -> dict[str, Progress]:
        """Return the progress by problem, without those that have nothing to train."""
        found = {name: self.of(self._study.problem_cells(name)) for name in self._study.problems}
        return {name: progress for name, progress in found.items() if progress.cells}

    def figures(self) -> dict[str, Progress]:
        """Return the progress by figure, over the cells that it draws."""
        return {
            name: self.of(self._outputs.drawn_cells(figure))
            for name, figure in self._study.figures.items()
        }

    def failures(self) -> Iterator[tuple[str, Path]]:
        """Yield the name and log of each job of every stage that ended without its output, cells first."""
        for cell, state in self.states.items():
            if state == "failed":
                name = f"{cell.problem}/{cell.name}"
                yield name, self._paths.cell_log(self._study, cell)
        logs = self._paths.results / "logs"
        for log in sorted(logs.rglob("*.log")):
            inside = log.relative_to(logs)
            if inside.parts[0] not in ("cells", "slurm") and last_words(log)[1]:
                yield str(inside.with_suffix("")), log

    def lines(self, gpus: int = 0) -> Iterator[str]:
        """Yield the status as text for a terminal.

        Args:
            gpus: the number of GPUs of this machine, for the time left; if 0, the number of running cells.
        """
        everything = self.of(self.states)
        if figures := self.figures():
            yield from _table("figure", figures)
            yield ""
        if problems := self.problems():
            yield from _table("problem", problems | {"all": everything})
        at_once = gpus or everything.cells["running"]
        if everything.left:
            yield (
                f"{duration(everything.left)} of {self._unit} time left; with {max(at_once, 1)} at once: "
                f"{duration(everything.left / max(at_once, 1))}. {self.forecast.basis}"
            )
        if failed := list(self.failures()):
            yield f"{len(failed)} failed: `dpsweep status --failed` says why and where."

    def failed_lines(self) -> Iterator[str]:
        """Yield the last words of jobs that failed, each once, with the jobs and the log of the first."""
        logs = dict(self.failures())
        words = ((name, last_words(log)[0]) for name, log in logs.items())
        for line, names in group_by_message(words).items():
            yield f"{shorten(names)}: {line or 'an empty log'}"
            yield f"  log: {logs[names[0]]}"
        again = " The same command again runs them." if logs else ""
        yield f"{count(len(logs), 'job')} failed.{again}"

    def _is_outdated(self, output: Output) -> bool:
        """Return whether an input was written after the output, as Snakemake decides it."""
        made = min(file.stat().st_mtime_ns for file in output.files)
        return any((written := self._written(file)) and written > made for file in output.inputs)

    def _state(self, cell: Cell) -> State:
        if output_name(cell) not in self.lacking:
            return "waiting" if self._is_outdated(self.outputs[output_name(cell)]) else "done"
        log = self._paths.cell_log(self._study, cell)
        try:
            written = log.stat().st_mtime
        except FileNotFoundError:
            return "waiting"
        line, ended = last_words(log)
        if ENDED in line:
            return "waiting"  # its outputs were removed later
        # A job writes to its log at every trial and at every checkpoint.
        silence = 120 * self._study.training.checkpoint_minutes + 120
        return "failed" if ended or self._now - written > silence else "running"


class Forecast:
    """Forecast of the seconds of a cell on a GPU or core: measured on cells of its kind, or estimated."""

    def __init__(self, study: Study, measured: dict[Cell, float], device: Device) -> None:
        self._study = study
        self.cost = cache(lambda problem: ProblemCost(study, problem, device))
        """returns the costs of a problem"""
        self._estimate = cache(
            lambda problem, epochs, trials: (
                self.cost(problem).cell(epochs, trials).seconds * self.cost(problem).gpus("train")
            )
        )
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
        """Estimate the time of a cell that is not done, summed over the GPUs of its job."""
        kind = self._kind(cell)
        mean = self._means.get(kind)
        return self.ratio * self._estimate(*kind) if mean is None else mean

    def _kind(self, cell: Cell) -> tuple[str, int, int]:
        """Return problem, epochs and number of trials: cells that share them cost the same."""
        return cell.problem, cell.epochs, self._study.trials_per_cell(self._study.sweep_of(cell))


def _time_of_writing(file: Path) -> int | None:
    return file.stat().st_mtime_ns if file.exists() else None


def _read_timing(file: Path) -> dict[str, Any]:
    """Return the recorded time of a cell; empty if there is none, or if the file is damaged."""
    try:
        found = read_json(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def output_name(cell: Cell) -> str:
    """Return the name of a cell's output."""
    return f"cells/{cell.problem}/{cell.name}"


def _table(title: str, rows: dict[str, Progress]) -> list[str]:
    table = [(title, *STATES, "time spent", "time left")]
    for name, each in rows.items():
        cells = (str(each.cells[state]) for state in STATES)
        table.append((name, *cells, duration(each.spent), duration(each.left)))
    return columns(table)


# -- plans ------------------------------------------------------------------------------------

GPUS = (1, 8, 64)
_STAGES = ("train", "features", "gradient_norms", "theory", "audit")  # in the order of the plan


@dataclass
class CostEstimate:
    """The number of missing outputs, and their cost."""

    cells: int = 0
    trials: int = 0
    seconds: float = 0.0
    """of GPUs, or of the cores of a CPU"""
    longest: float = 0.0
    """seconds of the longest job"""
    bytes: float = 0.0

    def __add__(self, other: "CostEstimate") -> "CostEstimate":
        return CostEstimate(
            self.cells + other.cells,
            self.trials + other.trials,
            self.seconds + other.seconds,
            max(self.longest, other.longest),
            self.bytes + other.bytes,
        )


class Plan:
    """The jobs that some targets of a study still need.

    Args:
        study: the study.
        paths: its files.
        targets: see `Outputs.asked`, or ``release``; none means everything.
        device: the device of the estimates; times are counted in its unit.
        status: of the study, for the same device; computed if it is None, which is slow.
        refused: problems whose sweeps do not run, because their data are private. The study's release, if
            it is not there, is planned in their place.

    Raises:
        DpsweepError: the study has no such target.
    """

    def __init__(
        self,
        study: Study,
        paths: Paths,
        targets: Sequence[str] = (),
        device: Device = GPU,
        status: Status | None = None,
        refused: Collection[str] = (),
    ) -> None:
        self._study, self._device = study, device
        self._status = status or Status(study, paths, device=device)
        outputs = Outputs(study, paths)
        others = [target for target in targets if target != "release"]
        needed = (
            self._status.needed(each for target in others for each in outputs.asked(target))
            if targets
            else self._status.outputs.values()
        )
        jobs = (each for each in needed if isinstance(each, GpuOutput))
        self._jobs = sorted(
            (job for job in jobs if job.stage == "features" or job.cell.problem not in refused),
            key=lambda job: _STAGES.index(job.stage),
        )
        planned = "release" in targets or (refused and not targets)
        self._release = study.release if planned and not paths.release.exists() else None

    def estimates(self) -> dict[str, CostEstimate]:
        """Return the missing work by row: problems, then features, norms, theory and audit."""
        missing = self._missing()
        counts = Counter(job.stage for job in missing)
        estimates: dict[str, CostEstimate] = {}
        for job in missing:
            kind = f"{job.stage.replace('_', ' ')} ({counts[job.stage]})"
            row = job.cell.problem if job.stage == "train" else kind
            estimates[row] = estimates.get(row, CostEstimate()) + self._cost(job)
        if self._release is not None:
            estimates["release"] = self._cost_of_release(self._release)
        return estimates

    def preparation_bytes(self) -> float:
        """Estimate the size of the datasets and backbones that are not prepared yet."""
        study, lacking = self._study, self._status.lacking
        names = {cell.problem for cell in self._cells()}
        if self._release is not None:
            names.add(study.sweeps[self._release.sweep].problem.name)
        problems = [study.problems[name] for name in names]
        datasets = {each.dataset for each in problems}
        backbones = {each.backbone: each.dataset for each in problems}
        return sum(
            input_bytes(study.datasets[name]) for name in datasets if f"data/{name}" in lacking
        ) + sum(
            backbone_bytes(study.backbones[name], study.datasets[dataset])
            for name, dataset in backbones.items()
            if f"backbones/{name}" in lacking
        )

    def _memory(self) -> str:
        """Describe the GPU memory that the largest cells need."""
        kinds = dict.fromkeys((job.cell.problem, job.cell.epochs) for job in self._missing())
        costs = {kind[0]: self._status.forecast.cost(kind[0]).cell(kind[1]) for kind in kinds}
        problem = max(costs, key=lambda name: costs[name].gpu_gigabytes)
        needed, inputs = costs[problem].gpu_gigabytes, costs[problem].input_gigabytes
        return f"{problem}: {needed:.0f} GB of memory, and {inputs:.0f} GB where the data shall lie there too"

    def lines(self, gpus: Sequence[int] = GPUS) -> Iterator[str]:
        """Yield the plan as text for a terminal, with wall times for some numbers of GPUs or cores."""
        cells = self._cells()
        done = sum(self._status.states[cell] == "done" for cell in cells)
        so_far = f"{done} of {len(cells)} cells are done. " if cells else ""
        yield f"{so_far}Estimates for what is missing:"
        estimates = self.estimates()
        everything = sum(estimates.values(), CostEstimate())
        rows = [("", "cells", "trials", f"{self._device.unit} time", "longest job", "disk")]
        for name, each in {**estimates, "all": everything}.items():
            times = duration(each.seconds), duration(each.longest)
            rows.append((name, f"{each.cells:,}", f"{each.trials:,}", *times, size(each.bytes)))
        yield from columns(rows)
        preparation = self.preparation_bytes()
        yield (
            f"Disk: {size(everything.bytes)}, and {size(preparation)} of datasets and weights "
            "to prepare."
        )
        for name in self._study.swept_datasets:
            if (dataset := self._study.datasets[name]).has_units:
                yield f"{name}: epsilon protects {dataset.protects}; N = {dataset.protected}"
        if not estimates:
            return
        if self._device.unit == "GPU" and self._missing():
            yield f"{len(self._missing()):,} jobs with a GPU; the largest are those of {self._memory()}."
        walls = (
            f"{duration(max(everything.seconds / k, everything.longest))} at {k}" for k in gpus
        )
        yield f"Wall time, if no job waits, by number of {self._device.unit}s: {', '.join(walls)}."
        speed = f"{self._device.name} at {self._device.teraflops:.2g} Tflop/s"
        yield f"Assumed: {speed}. {self._status.forecast.basis}"

    def _cells(self) -> list[Cell]:
        return [job.cell for job in self._jobs if job.stage == "train"]

    def _missing(self) -> list[GpuOutput]:
        return [job for job in self._jobs if job.name in self._status.lacking]

    def _cost(self, job: GpuOutput) -> CostEstimate:
        cell, forecast = job.cell, self._status.forecast
        cost = forecast.cost(cell.problem)
        gpus, disk = cost.gpus(job.stage), cost.bytes(job.stage, cell)
        if job.stage == "train":
            seconds = self._status.seconds_of_new_trials(cell)
            trials = self._status.new_trials[cell]
            return CostEstimate(1, trials, seconds, seconds / gpus, disk)
        seconds = cost.seconds(job.stage, cell.epochs)
        if job.stage != "features":  # the times of trials do not depend on those of features
            seconds *= forecast.ratio
        return CostEstimate(0, int(job.stage == "audit"), seconds * gpus, seconds, disk)

    def _cost_of_release(self, release: Release) -> CostEstimate:
        """Estimate the training of a release: the mean of its secret number of trials, the longest epochs."""
        sweep, gpus = self._study.sweeps[release.sweep], self._study.release_gpus(release)
        trials = release.mean_trials if release.selection == "private" else 1
        cost = self._status.forecast.cost(sweep.problem.name)
        longest = cost.cell(max(release.epochs), trials=1, gpus=gpus).seconds
        seconds = trials * self._status.forecast.ratio * longest
        section = self._study.backbones[sweep.backbone]
        disk = backbone_bytes(section, self._study.datasets[sweep.dataset])
        return CostEstimate(0, math.ceil(trials), seconds * gpus, seconds, disk)
