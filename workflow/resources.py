"""Resources of jobs from the cost model: memory and time on a cluster, more at every attempt.

A profile limits the time (``resources: runtime``) and selects partitions (profiles/slurm/config.yaml).
"""

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal

from dpsweep.planning.cost import ProblemCost
from dpsweep.planning.outputs import Stage
from dpsweep.study import Cell, Study

# It need not cover every machine, because a job at its limit saves its state and is requeued.
_MARGIN = 1.5
# Slurm's start of a job, two starts of Snakemake, a slow file system, and the notice before the limit.
_START_MINUTES = 10
# For a release, the most that jobs may have: ending before a shorter limit would reveal that trials were few.
_MONTH_MINUTES = 30 * 24 * 60


Job = Stage | Literal["release"]
"""A stage whose jobs use GPUs."""


class JobResources:
    """Resources of a study's jobs on GPUs."""

    def __init__(self, study: Study) -> None:
        self._study = study
        cost = cache(lambda name: ProblemCost(study, name))
        # Cached for thousands of jobs; the costs of a problem's cells differ only by their epochs.
        self._cell = cache(lambda name, epochs, gpus: cost(name).cell(epochs, gpus=gpus))
        self._seconds = cache(lambda stage, name, epochs: cost(name).seconds(stage, epochs))

    def on_gpu(self, stage: Job, **known: Any) -> dict[str, Any]:
        """Return GPUs, CPUs, and memory in MB and time in minutes as functions of wildcards and attempt.

        The wildcards, or ``known`` in their place, identify the job: problem and cell or epochs, or the
        dataset and backbone of features.
        """

        def mem_mb(wildcards: Mapping[str, str], attempt: int) -> int:
            name, epochs = self._kind(known or wildcards)
            gigabytes = self._cell(name, epochs, self._gpus(stage, name)).host_gigabytes
            return attempt * 1000 * math.ceil(gigabytes)

        def runtime(wildcards: Mapping[str, str], attempt: int) -> int:
            if stage == "release":
                return _MONTH_MINUTES
            name, epochs = self._kind(known or wildcards)
            seconds = (
                self._cell(name, epochs, 1).seconds
                if stage == "audit"
                else self._seconds(stage, name, epochs)
            )
            return attempt * (_START_MINUTES + math.ceil(_MARGIN * seconds / 60))

        # `cores: all` of profiles/default cuts threads, also of Slurm's jobs, to the cores of this machine.
        gpu, cpus = self._each(stage, 1), self.threads(stage)
        return {"gpu": gpu, "cpus_per_task": cpus, "mem_mb": mem_mb, "runtime": runtime}

    def threads(self, stage: Job) -> int | Callable[[Mapping[str, str]], int]:
        """Return the CPUs of a job, for all its GPUs; a function of wildcards if problems differ."""
        return self._each(stage, self._study.training.threads)

    def _each(self, stage: Job, factor: int) -> int | Callable[[Mapping[str, str]], int]:
        found = {self._gpus(stage, name) for name in self._study.problems}
        if len(found) == 1:
            return factor * found.pop()
        return lambda wildcards: factor * self._gpus(stage, wildcards["problem"])

    def _gpus(self, stage: Job, problem: str) -> int:
        if stage == "release" and self._study.release is not None:
            return self._study.release_gpus(self._study.release)
        return self._study.gpus(problem) if stage in ("train", "gradient_norms") else 1

    @staticmethod
    def plan_teraflops(given: Mapping[str, Mapping[str, Any]]) -> str:
        """Return ``set-resources: plan: teraflops`` as typed, because Snakemake rounds resources; or 0."""
        found = given.get("plan", {}).get("teraflops")
        # A profile puts quotes around text, and YAML takes 1e3 for text.
        return "0" if found is None else str(found.raw).strip("'")

    def _kind(self, given: Mapping[str, Any]) -> tuple[str, int]:
        known = dict(given.items())
        if "epochs" in known:
            return known["problem"], int(known["epochs"])
        if "cell" in known:
            return known["problem"], Cell.parse(known["problem"], known["cell"]).epochs
        problems, source = self._study.problems, (known["dataset"], known["backbone"])
        kinds = self._study.kinds()
        return next(k for k in kinds if (problems[k[0]].dataset, problems[k[0]].backbone) == source)
