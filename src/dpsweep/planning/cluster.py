"""How stages become jobs of a cluster: site settings, and what each kind of job asks for.

Snakemake's Slurm plugin reads the resources that are made here. Without a cluster nothing is
asked for but a GPU to count, and nothing is packed.
"""

import math
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError

from dpsweep.errors import DpsweepError
from dpsweep.planning.cost import TERAFLOPS, cell_cost, norms_seconds
from dpsweep.study.config import Study

# How much longer than its estimate a job may take before it is interrupted and requeued.
_MARGIN = 1.5
# The signal that announces a time limit comes in the second half of a job at the earliest.
_SIGNAL_SHARE = 0.5

# The numbers of jobs that can be packed (the profile has the same list).
PACK_SIZES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30, 60)

Stage = Literal["train", "gradient_norms"]
STAGES: tuple[Stage, ...] = ("train", "gradient_norms")

Resource = str | int | Callable[..., int]


class ClusterError(DpsweepError):
    """Site settings that cannot be used; the message names the keys."""


class GpuClass(BaseModel):
    """A kind of GPU and how Slurm is asked for one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    request: Annotated[str, Field(pattern=r"^(gpu(:[\w.]+)?:1|--.+)$")]
    memory_gigabytes: PositiveFloat
    teraflops: PositiveFloat = TERAFLOPS


class Site(BaseModel):
    """The settings of one cluster (profiles/slurm/site.yaml, which describes each of them)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    account: str
    gpu_partition: str
    cpu_partition: str
    gpus: Annotated[list[GpuClass], Field(min_length=1)]
    time_limit_minutes: PositiveInt
    job_minutes: PositiveInt = 30
    command: str = "dpsweep"
    setup: list[str] = []
    options: str = ""
    signal_seconds: Annotated[int, Field(ge=10)] = 120
    prepare: Literal["here", "cluster"] = "here"

    def gpu(self, study: Study, problem: str, epochs: int) -> GpuClass:
        """The smallest kind of GPU that a problem's cells fit."""
        needed = cell_cost(study, problem, epochs).gpu_gigabytes
        classes = sorted(self.gpus, key=lambda each: each.memory_gigabytes)
        # A smaller physical batch is the remedy where none is large enough; training will say so.
        return next((each for each in classes if each.memory_gigabytes >= needed), classes[-1])


def read_site(settings: dict[str, Any], where: str) -> Site:
    """Check site settings.

    Args:
        settings: the mapping as it was read; a key without a value counts as unset.
        where: the file to name in an error.

    Raises:
        ClusterError: a setting is unset, unknown or wrong; all of them are listed.
    """
    given = {key: value for key, value in settings.items() if value is not None}
    try:
        return Site.model_validate(given)
    except ValidationError as error:
        lines = []
        for problem in error.errors():
            key = ".".join(str(part) for part in problem["loc"])
            match problem["type"]:
                case "missing":
                    lines.append(f"  slurm.{key}: not set")
                case "extra_forbidden":
                    lines.append(f"  slurm.{key}: unknown; allowed: {', '.join(Site.model_fields)}")
                case _:
                    lines.append(f"  slurm.{key}: {problem['msg']} (found {problem['input']!r})")
        raise ClusterError(
            f"{where} does not describe this cluster yet:\n" + "\n".join(lines) + "\n"
            "Every setting is explained in that file."
        ) from error


def _pack_size(fitting: int) -> int:
    return max((each for each in PACK_SIZES if each <= fitting), default=1)


class Jobs:
    """What the jobs of a study ask for.

    Args:
        study: the study.
        site: the cluster, or None for one machine.
    """

    def __init__(self, study: Study, site: Site | None) -> None:
        self._study = study
        self._site = site

    def shell_setup(self, requeue: Path) -> str:
        """Shell code that runs before every command of the workflow.

        Args:
            requeue: the script that is told the exit status of a command that failed.
        """
        if self._site is None:
            return ""
        # On SIGTERM the shell waits for the training, which saves its state and ends.
        lines = ["set -eo pipefail", *self._site.setup, "trap : TERM"]
        lines.append(f"trap '{shlex.quote(str(requeue))} $?' EXIT")
        if self._site.command != "dpsweep":
            lines.append(f'dpsweep() {{ {self._site.command} "$@"; }}')
        return "".join(f"{line}; " for line in lines)

    @property
    def prepare_here(self) -> bool:
        """Whether datasets and backbones are prepared where the workflow runs."""
        return self._site is None or self._site.prepare == "here"

    @property
    def packs(self) -> dict[str, str]:
        """How many jobs of each group share one job of the cluster, as ``packed_<number>``."""
        if self._site is None:
            return {}
        packs = {"calibrate": _pack_size(self._site.job_minutes)}
        for problem, epochs in self._study.kinds():
            for stage in STAGES:
                packs[self.group(stage, problem, epochs)] = self.pack_size(stage, problem, epochs)
        return {group: f"packed_{size}" for group, size in packs.items()}

    def pack_size(self, stage: Stage, problem: str, epochs: int) -> int:
        """How many jobs of a stage share one job of the cluster."""
        if self._site is None:
            return 1
        seconds = self._seconds(stage, problem, epochs)
        fitting = int(60 * self._site.job_minutes // seconds)
        allowed = self._site.time_limit_minutes // self._minutes(seconds)
        return _pack_size(min(fitting, allowed))

    @staticmethod
    def group(stage: Stage, problem: str, epochs: int) -> str:
        """The group of jobs that may be packed: one problem and one number of epochs.

        It follows from what a job is, so a new value of the grid moves no other job, and all of
        its jobs cost the same.
        """
        return f"{stage}_{problem}_epochs{epochs}"

    def training(self, problem: str, epochs: int) -> dict[str, Resource]:
        """Resources of a job that trains one cell."""
        return self._on_gpu("train", problem, epochs)

    def gradient_norms(self, problem: str, epochs: int) -> dict[str, Resource]:
        """Resources of a job that measures the gradient norms of one (epsilon, epochs, C)."""
        return self._on_gpu("gradient_norms", problem, epochs)

    def analysis(self, minutes: int = 30, gigabytes: int = 8) -> dict[str, Resource]:
        """Resources of a job without a GPU."""
        if self._site is None:
            return {}
        return self._common(self._site.cpu_partition, minutes, gigabytes)

    def _on_gpu(self, stage: Stage, problem: str, epochs: int) -> dict[str, Resource]:
        if self._site is None:
            return {"gpu": 1}
        cost = cell_cost(self._study, problem, epochs)
        minutes = self._minutes(self._seconds(stage, problem, epochs))
        resources = self._common(self._site.gpu_partition, minutes, math.ceil(cost.host_gigabytes))
        options = [self._site.options]
        request = self._site.gpu(self._study, problem, epochs).request
        if request.startswith("--"):
            options.append(request)
        else:
            resources["gres"] = request
        # Every step of the job gets the signal in time: training saves its state, is requeued.
        notice = min(self._site.signal_seconds, int(_SIGNAL_SHARE * 60 * minutes))
        options.append(f"--signal=USR1@{notice}")
        resources["slurm_extra"] = " ".join(option for option in options if option)
        resources["cpus_per_task"] = self._study.training.threads
        return resources

    def _common(self, partition: str, minutes: int, gigabytes: int) -> dict[str, Resource]:
        assert self._site is not None  # noqa: S101
        limit = self._site.time_limit_minutes

        # What was too little is doubled for the second attempt.
        def memory(wildcards: object, attempt: int) -> int:  # noqa: ARG001 (Snakemake's names)
            return 1000 * gigabytes * attempt

        def runtime(wildcards: object, attempt: int) -> int:  # noqa: ARG001
            return min(minutes * attempt, limit)

        return {
            "slurm_account": self._site.account,
            "slurm_partition": partition,
            "slurm_extra": self._site.options,
            "turn": 1,
            "runtime": runtime,
            "mem_mb": memory,
        }

    def _seconds(self, stage: Stage, problem: str, epochs: int) -> float:
        assert self._site is not None  # noqa: S101
        teraflops = self._site.gpu(self._study, problem, epochs).teraflops
        if stage == "train":
            return cell_cost(self._study, problem, epochs, teraflops).seconds
        return norms_seconds(self._study, problem, epochs, teraflops)

    def _minutes(self, seconds: float) -> int:
        assert self._site is not None  # noqa: S101
        return min(1 + math.ceil(_MARGIN * seconds / 60), self._site.time_limit_minutes)
