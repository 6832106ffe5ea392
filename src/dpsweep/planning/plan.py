"""The plan of a run: the missing outputs of some targets, and their cost.

All numbers are estimates (`dpsweep.planning.cost`), corrected by the times of finished cells of the study.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from dpsweep.base.units import columns, duration, size
from dpsweep.planning.cost import GPU, Device, backbone_bytes, input_bytes
from dpsweep.planning.outputs import GpuOutput, Outputs
from dpsweep.planning.status import Status
from dpsweep.study import Study
from dpsweep.study.cells import Cell
from dpsweep.study.paths import Paths
from dpsweep.study.release import Release

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
