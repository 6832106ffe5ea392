"""Resources of jobs, by the cost model: memory and time that a job asks of a cluster, more at every attempt.

A profile limits time (``resources: runtime``) and says where jobs go (profiles/slurm/config.yaml).
"""

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from dpsweep.planning.cost import ProblemCost, Stage
from dpsweep.study import Cell, Study

# A job that meets its limit saves its state and is requeued, so the margin need not cover every machine.
_MARGIN = 1.5
# Slurm's start of a job, two starts of Snakemake, a slow file system, and the notice before the limit.
_START_MINUTES = 10

Asked = Callable[[Mapping[str, str], int], int]


class JobResources:
    """Resources of a study's jobs on GPUs, as functions of wildcards (or what the rule knows) and attempt.

    A job is known by its problem and epochs, or by the dataset and backbone whose features it computes.
    """

    def __init__(self, study: Study) -> None:
        self._study = study
        self._cost = cache(lambda problem: ProblemCost(study, problem))

    def mem_mb(self, **known: Any) -> Asked:
        """Memory of the CPU in MB."""

        def asked(wildcards: Mapping[str, str], attempt: int) -> int:
            problem, epochs = self._kind(known or dict(wildcards.items()))
            return attempt * 1000 * math.ceil(self._cost(problem).cell(epochs).host_gigabytes)

        return asked

    def runtime(self, stage: Stage, **known: Any) -> Asked:
        """Time in minutes."""

        def asked(wildcards: Mapping[str, str], attempt: int) -> int:
            problem, epochs = self._kind(known or dict(wildcards.items()))
            seconds = self._cost(problem).seconds(stage, epochs)
            return attempt * (_START_MINUTES + math.ceil(_MARGIN * seconds / 60))

        return asked

    def _kind(self, known: Mapping[str, Any]) -> tuple[str, int]:
        if "epochs" in known:
            return known["problem"], int(known["epochs"])
        if "cell" in known:
            return known["problem"], Cell.parse(known["problem"], known["cell"]).epochs
        grids, source = self._study.problems, (known["dataset"], known["backbone"])
        kinds = self._study.kinds()
        return next(
            each for each in kinds if (grids[each[0]].dataset, grids[each[0]].backbone) == source
        )
