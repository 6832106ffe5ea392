"""Plan the remaining work for some targets and its cost, before anything is spent.

Only what is missing counts. All numbers are estimates (`dpsweep.planning.cost`), corrected by what
finished cells of the study really took.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpsweep.base.errors import DpsweepError
from dpsweep.base.units import duration, size
from dpsweep.planning.cluster import GpuClass, Jobs, Site, Stage
from dpsweep.planning.cost import (
    backbone_bytes,
    cell_bytes,
    cell_cost,
    features_bytes,
    features_seconds,
    input_bytes,
    norms_bytes,
    norms_seconds,
    theory_bytes,
    theory_seconds,
)
from dpsweep.planning.device import GPU, Device
from dpsweep.planning.outputs import NormsKey, Output, Outputs
from dpsweep.planning.status import Status
from dpsweep.study import Study
from dpsweep.study.cells import Cell, FeatureSource
from dpsweep.study.messages import unknown
from dpsweep.study.paths import Paths
from dpsweep.study.trials import trials_per_cell

GPUS = (1, 8, 64)


class PlanError(DpsweepError):
    """A target that the study does not have."""


@dataclass
class CostEstimate:
    """Missing outputs and their cost."""

    cells: int = 0
    trials: int = 0
    seconds: float = 0.0
    """of GPU time, or of a CPU's cores"""
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
    """Find what some targets of a study still need.

    Args:
        study: the study.
        paths: its files.
        targets: figures, tables, problems, sweeps, cells (``problem/cell``), or their files below
            the results; none, ``all`` or the report mean everything.
        site: the cluster, whose GPUs the times are for.
        device: what they are for where there is no cluster; times are counted in its unit.
        status: of the study, for the same GPUs, if the caller has it; to compute it is slow.

    Raises:
        PlanError: the study has no such target.
    """

    def __init__(
        self,
        study: Study,
        paths: Paths,
        targets: Sequence[str] = (),
        site: Site | None = None,
        device: Device = GPU,
        status: Status | None = None,
    ) -> None:
        self._study, self._paths, self._site, self._device = study, paths, site, device
        self._status = status or Status(study, paths, site=site, device=device)
        self._outputs = Outputs(study, paths)
        self._cells: dict[Cell, None] = {}
        self._norms: dict[NormsKey, list[Cell]] = {}
        self._theory: dict[Cell, None] = {}
        self._audit = False
        for target in targets or ("all",):
            self._add(target)

    def estimates(self) -> dict[str, CostEstimate]:
        """List what is missing: by problem, then features, norms, theory and audit."""
        study = self._study
        estimates: dict[str, CostEstimate] = {}
        for cell in self._missing_cells():
            trials = trials_per_cell(self._study, self._study.sweep_of(cell))
            seconds = self._status.forecast.seconds(cell)
            one = CostEstimate(1, trials, seconds, seconds, cell_bytes(self._study, cell))
            estimates[cell.problem] = estimates.get(cell.problem, CostEstimate()) + one
        # What trials took says nothing of the features that they read.
        features = [
            CostEstimate(seconds=seconds, longest=seconds, bytes=features_bytes(study, problem))
            for problem, epochs in self._missing_features().items()
            for seconds in [
                features_seconds(study, problem, self._status.forecast.device(problem, epochs))
            ]
        ]
        if features:
            estimates[f"features ({len(features)})"] = sum(features, CostEstimate())
        ratio = self._status.forecast.ratio
        norms = [
            CostEstimate(
                seconds=ratio * seconds,
                longest=ratio * seconds,
                bytes=norms_bytes(self._study, problem, epochs),
            )
            for problem, _, epochs, _ in self._missing_norms()
            for seconds in [
                norms_seconds(
                    self._study, problem, epochs, self._status.forecast.device(problem, epochs)
                )
            ]
        ]
        if norms:
            estimates[f"gradient norms ({len(norms)})"] = sum(norms, CostEstimate())
        theory = [
            CostEstimate(
                seconds=ratio * seconds, longest=ratio * seconds, bytes=theory_bytes(study, cell)
            )
            for cell in self._missing_theory()
            for device in [self._status.forecast.device(cell.problem, cell.epochs)]
            for seconds in [theory_seconds(study, cell.problem, cell.epochs, device)]
        ]
        if theory:
            estimates[f"theory ({len(theory)})"] = sum(theory, CostEstimate())
        if settings := self._missing_audit():
            cost = self._audit_seconds(settings[0])
            estimates[f"audit ({len(settings)})"] = CostEstimate(
                trials=len(settings), seconds=ratio * cost * len(settings), longest=ratio * cost
            )
        return estimates

    def preparation_bytes(self) -> float:
        """The size of datasets and backbones that are not prepared yet."""
        grids = [self._study.problems[cell.problem] for cell in self._cells]
        datasets = {grid.dataset for grid in grids}
        backbones = {grid.backbone: grid.dataset for grid in grids}
        return sum(
            input_bytes(self._study.datasets[name])
            for name in datasets
            if self._lacks(self._outputs.dataset(name))
        ) + sum(
            backbone_bytes(self._study.backbones[name], self._study.datasets[dataset])
            for name, dataset in backbones.items()
            if self._lacks(self._outputs.backbone(name))
        )

    def gpu_jobs(self) -> int:
        """Jobs of the cluster that train or measure, packs counted once."""
        jobs = Jobs(self._study, self._site)
        counts: Counter[tuple[Stage, str, int]] = Counter()
        counts.update(("train", cell.problem, cell.epochs) for cell in self._missing_cells())
        counts.update(
            ("gradient_norms", each.problem, each.epochs) for each in self._missing_norms()
        )
        counts.update(("theory", cell.problem, cell.epochs) for cell in self._missing_theory())
        packed = sum(-(-count // jobs.pack_size(*kind)) for kind, count in counts.items())
        return packed + len(self._missing_features()) + len(self._missing_audit())

    def lines(self, gpus: Sequence[int] = GPUS) -> Iterator[str]:
        """The plan as text for a terminal, with wall times at some numbers of GPUs, or of cores."""
        done = len(self._cells) - len(self._missing_cells())
        yield f"{done} of {len(self._cells)} cells are done. Estimates for what is missing:"
        estimates = self.estimates()
        everything = sum(estimates.values(), CostEstimate())
        yield from _table(estimates | {"all": everything}, self._device.unit)
        preparation = self.preparation_bytes()
        yield (
            f"Disk: {size(everything.bytes)}, and {size(preparation)} of datasets and weights "
            "to prepare."
        )
        if not estimates:
            return
        if self._site is not None:
            yield f"Slurm: {self.gpu_jobs():,} jobs with a GPU, short cells packed."
        walls = (
            f"{duration(max(everything.seconds / k, everything.longest))} at {k}" for k in gpus
        )
        yield f"Wall time, if no job waits, by number of {self._device.unit}s: {', '.join(walls)}."
        yield f"Assumed: {', '.join(self._assumptions())}. {self._status.forecast.basis}"

    # -- targets -----------------------------------------------------------------------------

    def _add(self, target: str) -> None:
        study, path = self._study, Path(target)
        if path.is_relative_to(self._paths.results):
            path = path.relative_to(self._paths.results)
        match path.parts:
            case ("all",) | ("report.html",) | ("explore.html",):
                self._add_everything()
            case ("figures" | "tables" | "problems", file):
                self._add_name(Path(file).stem, target)
            case ("cells", problem, cell, *_) | (problem, cell) if problem in study.problems:
                self._add_cell(problem, cell, target)
            case ("gradnorms", problem, file) if problem in study.problems:
                self._add_measured_norms(problem, Path(file).stem, target)
            case ("theory", problem, file) if problem in study.problems:
                self._add_cell(problem, Path(file).stem, target)
                self._theory[_parse(problem, Path(file).stem, target)] = None
            case (name,):
                self._add_name(name, target)
            case _:
                raise PlanError(f"{target}: {unknown(target, self._names())}")

    def _names(self) -> list[str]:
        study = self._study
        names = ["all", *study.figures, *study.tables, *study.problems, *study.sweeps]
        return list(dict.fromkeys(names))

    def _add_everything(self) -> None:
        for name in (*self._study.problems, *self._study.figures, *self._study.tables):
            self._add_name(name, name)
        self._audit = True

    def _add_name(self, name: str, target: str) -> None:
        study = self._study
        if name in study.problems:
            self._cells.update(dict.fromkeys(study.problem_cells(name)))
            return
        if name in study.sweeps:
            self._cells.update(dict.fromkeys(study.sweep_cells(name)))
            return
        targets = {**study.figures, **study.tables}
        if name not in targets:
            raise PlanError(f"{target}: {unknown(name, self._names())}")
        for selection in targets[name].selections():
            self._cells.update(dict.fromkeys(study.cells(selection)))
        for selection in targets[name].gradient_norms():
            self._add_norms(study.cells(selection))
        for selection in targets[name].overlaps():
            self._theory.update(dict.fromkeys(study.cells(selection)))

    def _add_cell(self, problem: str, name: str, target: str) -> None:
        cell = _parse(problem, name, target)
        if cell not in self._status.states:
            names = [each.name for each in self._study.problem_cells(problem)]
            raise PlanError(f"{target}: {unknown(name, names)}")
        self._cells[cell] = None

    def _add_measured_norms(self, problem: str, name: str, target: str) -> None:
        named = {
            self._paths.gradient_norms(*NormsKey.of(cell)).stem: cell
            for cell in self._study.problem_cells(problem)
        }
        if name not in named:
            raise PlanError(f"{target}: {unknown(name, named)}")
        self._add_norms([named[name]])

    def _add_norms(self, cells: Iterable[Cell]) -> None:
        for key in dict.fromkeys(map(NormsKey.of, cells)):
            self._norms[key] = self._study.competing_cells(*key)
            self._cells.update(dict.fromkeys(self._norms[key]))

    # -- what is missing ---------------------------------------------------------------------

    def _missing_cells(self) -> list[Cell]:
        return [cell for cell in self._cells if self._status.states[cell] != "done"]

    def _missing_features(self) -> dict[str, int]:
        """Features that cells read: by one of their problems, with epochs of it."""
        found: dict[FeatureSource, tuple[str, int]] = {}
        for cell in self._cells:
            parts = self._study.problems[cell.problem]
            source = FeatureSource(parts.dataset, parts.backbone)
            if self._study.features(cell.problem) and source not in found:
                found[source] = (cell.problem, cell.epochs)
        return dict(
            each for source, each in found.items() if self._lacks(self._outputs.features(source))
        )

    def _missing_norms(self) -> list[NormsKey]:
        # Norms that no figure draws are no output of the study: their cells and their file tell.
        return [
            key
            for key, cells in self._norms.items()
            for output in [self._outputs.gradient_norms(key)]
            if self._lacks(output)
            or not output.files[0].exists()
            or any(self._status.states[cell] != "done" for cell in cells)
        ]

    def _missing_theory(self) -> list[Cell]:
        return [
            cell
            for cell in self._theory
            for output in [self._outputs.theory(cell)]
            if self._lacks(output)
            or not output.files[0].exists()
            or self._status.states[cell] != "done"
        ]

    def _missing_audit(self) -> list[Cell]:
        cells = self._study.audit_cells() if self._audit else []
        return [cell for cell in cells if self._lacks(self._outputs.audited(cell))]

    def _lacks(self, output: Output) -> bool:
        return output.name in self._status.lacking

    def _audit_seconds(self, setting: Cell) -> float:
        device = self._status.forecast.device(setting.problem, setting.epochs)
        cost = cell_cost(self._study, setting.problem, setting.epochs, device)
        return cost.seconds / cost.trials

    def _assumptions(self) -> list[str]:
        if self._site is None:
            return [f"{self._device.name} at {self._device.teraflops:.2g} Tflop/s"]
        used: dict[GpuClass, float] = {}
        for cell in self._missing_cells():
            gpu = self._site.gpu(self._study, cell.problem, cell.epochs)
            used[gpu] = used.get(gpu, 0.0) + self._status.forecast.seconds(cell)
        return [
            f"{duration(seconds)} of training on {gpu.request} at {gpu.teraflops:g} Tflop/s"
            for gpu, seconds in used.items()
        ] or ["nothing"]


def _parse(problem: str, name: str, target: str) -> Cell:
    try:
        return Cell.parse(problem, name)
    except ValueError as error:
        raise PlanError(f"{target}: {error}") from error


def _table(rows: dict[str, CostEstimate], unit: str) -> Iterator[str]:
    header = ("cells", "trials", f"{unit} time", "longest job", "disk")
    width = max(map(len, rows))
    yield f"{'':<{width}}  {'  '.join(f'{head:>11}' for head in header)}"
    for name, estimate in rows.items():
        values = (
            f"{estimate.cells:,}",
            f"{estimate.trials:,}",
            duration(estimate.seconds),
            duration(estimate.longest),
            size(estimate.bytes),
        )
        yield f"{name:<{width}}  {'  '.join(f'{value:>11}' for value in values)}"
