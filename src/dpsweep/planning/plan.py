"""The plan of a run: the missing outputs of some targets, and their cost.

All numbers are estimates (`dpsweep.planning.cost`), corrected by the times of finished cells of the study.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dpsweep.base.errors import DpsweepError
from dpsweep.base.units import columns, duration, size
from dpsweep.planning.cost import GPU, Device, Stage, backbone_bytes, input_bytes
from dpsweep.planning.outputs import NormsKey, Output, Outputs
from dpsweep.planning.status import Status, output_name
from dpsweep.study import Study
from dpsweep.study.cells import Cell, FeatureSource
from dpsweep.study.messages import unknown
from dpsweep.study.paths import Paths, settings_of

GPUS = (1, 8, 64)
# The kinds of jobs and their rows, in the order of the plan; jobs of cells are in the row of their problem.
_ROWS = {
    "train": "",
    "features": "features",
    "gradient_norms": "gradient norms",
    "theory": "theory",
    "audit": "audit",
}


class PlanError(DpsweepError):
    """An unknown target."""


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


@dataclass(frozen=True)
class _Job:
    """A job that the targets need."""

    stage: Stage | Literal["audit"]
    output: Output
    cell: Cell
    """the cell that it trains or measures, or one of them"""


class Plan:
    """The jobs that some targets of a study still need.

    Args:
        study: the study.
        paths: its files.
        targets: figures, tables, problems, sweeps, cells (``problem/cell``), or their files in the
            results folder; none, ``all`` or the report mean everything.
        device: the device of the estimates; times are counted in its unit.
        status: of the study, for the same device; computed if it is None, which is slow.

    Raises:
        PlanError: the study has no such target.
    """

    def __init__(
        self,
        study: Study,
        paths: Paths,
        targets: Sequence[str] = (),
        device: Device = GPU,
        status: Status | None = None,
    ) -> None:
        self._study, self._paths, self._device = study, paths, device
        self._status = status or Status(study, paths, device=device)
        self._outputs = Outputs(study, paths)
        self._jobs: dict[str, _Job] = {}
        for target in targets or ("all",):
            self._add(target)
        for cell in {cell.problem: cell for cell in self._cells()}.values():
            self._add_features(cell)

    def estimates(self) -> dict[str, CostEstimate]:
        """Return the missing work by row: problems, then features, norms, theory and audit."""
        missing = self._missing()
        counts = Counter(job.stage for job in missing)
        estimates: dict[str, CostEstimate] = {}
        for job in missing:
            kind = f"{_ROWS[job.stage]} ({counts[job.stage]})"
            row = job.cell.problem if job.stage == "train" else kind
            estimates[row] = estimates.get(row, CostEstimate()) + self._cost(job)
        return estimates

    def preparation_bytes(self) -> float:
        """Estimate the size of the datasets and backbones that are not prepared yet."""
        names = dict.fromkeys(cell.problem for cell in self._cells())
        grids = [self._study.problems[name] for name in names]
        datasets = {grid.dataset for grid in grids}
        backbones = {grid.backbone: grid.dataset for grid in grids}
        return sum(
            input_bytes(self._study.datasets[name])
            for name in datasets
            if self._outputs.dataset(name).missing()
        ) + sum(
            backbone_bytes(self._study.backbones[name], self._study.datasets[dataset])
            for name, dataset in backbones.items()
            if self._outputs.backbone(name).missing()
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
        yield f"{done} of {len(cells)} cells are done. Estimates for what is missing:"
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
        if self._device.unit == "GPU":
            yield f"{len(self._missing()):,} jobs with a GPU; the largest are those of {self._memory()}."
        walls = (
            f"{duration(max(everything.seconds / k, everything.longest))} at {k}" for k in gpus
        )
        yield f"Wall time, if no job waits, by number of {self._device.unit}s: {', '.join(walls)}."
        speed = f"{self._device.name} at {self._device.teraflops:.2g} Tflop/s"
        yield f"Assumed: {speed}. {self._status.forecast.basis}"

    # -- targets -----------------------------------------------------------------------------

    def _add(self, target: str) -> None:
        study, path = self._study, Path(target)
        if path.is_relative_to(self._paths.results):
            path = path.relative_to(self._paths.results)
        match path.parts:
            case ("all",) | ("report.html",) | ("explore.html",):
                for name in (*study.problems, *study.figures, *study.tables):
                    self._add_name(name, name)
                for cell in study.audit_cells():
                    self._add_job("audit", self._outputs.audited(cell), cell)
            case ("figures" | "tables" | "problems", file):
                self._add_name(Path(file).stem, target)
            case ("cells", problem, cell, *_) | (problem, cell) if problem in study.problems:
                self._add_cells([self._cell(problem, cell, target)])
            case ("gradnorms", problem, file) if problem in study.problems:
                keys = self._outputs.norms_by_name(problem)
                name = settings_of(Path(file))
                if name not in keys:
                    raise PlanError(f"{target}: {unknown(name, keys)}")
                self._add_norms([keys[name]])
            case ("theory", problem, file) if problem in study.problems:
                chosen = self._cell(problem, settings_of(Path(file)), target)
                self._add_cells([chosen])
                self._add_theory([chosen])
            case (name,):
                self._add_name(name, target)
            case _:
                raise PlanError(f"{target}: {unknown(target, self._names())}")

    def _names(self) -> list[str]:
        study = self._study
        names = ["all", *study.figures, *study.tables, *study.problems, *study.sweeps]
        return list(dict.fromkeys(names))

    def _add_name(self, name: str, target: str) -> None:
        study, outputs = self._study, self._outputs
        drawn = {**study.figures, **study.tables}
        if name in study.problems:
            self._add_cells(study.problem_cells(name))
        elif name in study.sweeps:
            self._add_cells(study.sweep_cells(name))
        elif name in drawn:
            self._add_cells(outputs.drawn_cells(drawn[name]))
            self._add_norms(outputs.drawn_norms(drawn[name]))
            self._add_theory(outputs.drawn_theory(drawn[name]))
        else:
            raise PlanError(f"{target}: {unknown(name, self._names())}")

    def _cell(self, problem: str, name: str, target: str) -> Cell:
        try:
            cell = Cell.parse(problem, name)
        except ValueError as error:
            raise PlanError(f"{target}: {error}") from error
        if cell not in self._status.states:
            names = [each.name for each in self._study.problem_cells(problem)]
            raise PlanError(f"{target}: {unknown(name, names)}")
        return cell

    def _add_cells(self, cells: Iterable[Cell]) -> None:
        for cell in cells:
            self._add_job("train", self._status.outputs[output_name(cell)], cell)

    def _add_norms(self, keys: Iterable[NormsKey]) -> None:
        for key in keys:
            cells = self._study.competing_cells(*key)
            self._add_cells(cells)
            self._add_job("gradient_norms", self._outputs.gradient_norms(key), cells[0])

    def _add_theory(self, cells: Iterable[Cell]) -> None:
        for cell in cells:
            self._add_job("theory", self._outputs.theory(cell), cell)

    def _add_features(self, cell: Cell) -> None:
        """Add the features that a cell reads, if it reads any."""
        parts = self._study.problems[cell.problem]
        if self._study.features(cell.problem):
            source = FeatureSource(parts.dataset, parts.backbone)
            self._add_job("features", self._outputs.features(source), cell)

    def _add_job(self, stage: Stage | Literal["audit"], output: Output, cell: Cell) -> None:
        self._jobs.setdefault(output.name, _Job(stage, output, cell))

    # -- missing jobs and their cost ---------------------------------------------------------

    def _cells(self) -> list[Cell]:
        return [job.cell for job in self._jobs.values() if job.stage == "train"]

    def _missing(self) -> list[_Job]:
        missing = [job for job in self._jobs.values() if job.output.missing()]
        order = list(_ROWS)
        return sorted(missing, key=lambda job: order.index(job.stage))

    def _cost(self, job: _Job) -> CostEstimate:
        cell, forecast = job.cell, self._status.forecast
        cost = forecast.cost(cell.problem)
        if job.stage == "train":
            trials = self._status.new_trials[cell]
            seconds = self._status.seconds_of_new_trials(cell)
            longest = seconds / cost.gpus("train")
            return CostEstimate(1, trials, seconds, longest, cost.bytes("train", cell))
        if job.stage == "audit":
            whole = cost.cell(cell.epochs, gpus=1)
            seconds = forecast.ratio * whole.seconds / whole.trials
            return CostEstimate(0, 1, seconds, seconds)
        seconds = cost.seconds(job.stage, cell.epochs)
        if job.stage != "features":  # the times of trials do not depend on those of features
            seconds *= forecast.ratio
        spent = seconds * cost.gpus(job.stage)
        return CostEstimate(0, 0, spent, seconds, cost.bytes(job.stage, cell))
