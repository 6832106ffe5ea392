"""How stages become jobs of a cluster: site settings, and what each kind of job asks for.

The workflow's executor (`workflow/executor`) reads the resources that are made here. Without a
cluster nothing is asked for but seats of a GPU (`dpsweep.base.gpus`), and nothing is packed.
"""

import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError

from dpsweep.base.errors import DpsweepError
from dpsweep.base.gpus import SEATS, Gpu, seats
from dpsweep.planning.cost import ProblemCost, Stage, cell_cost
from dpsweep.planning.device import GPU, TERAFLOPS, Device
from dpsweep.planning.outputs import Outputs
from dpsweep.planning.slurm import Request
from dpsweep.study import Study
from dpsweep.study.cells import FeatureSource
from dpsweep.study.config import Release
from dpsweep.study.paths import Paths

# How much longer than its estimate a job may take before it is interrupted and requeued.
_MARGIN = 1.5
# The signal that announces a time limit comes in the second half of a job at the earliest.
_SIGNAL_SHARE = 0.5

# However short they are: the command of a job names all that share it.
_LARGEST_PACK = 60
_CALIBRATION_MINUTES = 4

Resource = str | int | Callable[..., int]


class ClusterError(DpsweepError):
    """Site settings that cannot be used; the message names the keys."""


class GpuClass(BaseModel):
    """A kind of GPU and how Slurm is asked for one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    request: Annotated[str, Field(pattern=r"^(gpu(:[\w.]+)?:1|--.+)$")]
    memory_gigabytes: PositiveFloat
    teraflops: PositiveFloat = TERAFLOPS

    @property
    def device(self) -> Device:
        """Hardware that its jobs train on."""
        return replace(GPU, name=self.request, teraflops=self.teraflops)


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
    require_gpu: bool = True
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
        for mistake in error.errors():
            key = ".".join(str(part) for part in mistake["loc"])
            match mistake["type"]:
                case "missing":
                    lines.append(f"  slurm.{key}: not set")
                case "extra_forbidden":
                    lines.append(f"  slurm.{key}: unknown; allowed: {', '.join(Site.model_fields)}")
                case _:
                    lines.append(f"  slurm.{key}: {mistake['msg']} (found {mistake['input']!r})")
        raise ClusterError(
            f"{where} does not describe this cluster yet:\n" + "\n".join(lines) + "\n"
            "Every setting is explained in that file."
        ) from error


@dataclass(frozen=True)
class Kind:
    """A kind of job that a study sends, and the largest request among them."""

    name: str
    partition: str
    partition_key: str
    """the setting that names the partition"""
    cpus: int
    gpu: GpuClass | None
    request: Request


class Jobs:
    """Requests of a study's jobs.

    Args:
        study: the study.
        site: the cluster, or None for one machine.
        gpus: of the one machine.
    """

    def __init__(self, study: Study, site: Site | None, gpus: Sequence[Gpu] = ()) -> None:
        self._study = study
        self._site = site
        self._gpus = gpus

    def shell_setup(self, requeue: Path) -> str:
        """Shell code that runs before every command of the workflow.

        What the site sets up runs inside of `dpsweep`, so that a line that fails is in the log of the
        job that it fails.

        Args:
            requeue: the script that is told the exit status of a command that failed.
        """
        if self._site is None:
            return ""
        site = self._site
        # On SIGTERM the shells wait for the training, which saves its state and ends.
        inner = ["trap : TERM", "unset -f dpsweep"]
        if site.require_gpu:
            inner.append("export DPSWEEP_REQUIRE_GPU=1")
        for line in site.setup:
            complaint = shlex.quote(f"error: this line of slurm.setup failed: {line}")
            inner.append(f"{{ {line}; }} < /dev/null || {{ echo {complaint} >&2; exit 1; }}")
        inner.append(f'{site.command} "$@"')
        lines = ["set -eo pipefail", "trap : TERM"]
        lines.append(f"trap {shlex.quote(f'{shlex.quote(str(requeue))} $?')} EXIT")
        lines.append(f"dpsweep() ( {'; '.join(inner)} )")
        return "".join(f"{line}; " for line in lines)

    @property
    def prepare_here(self) -> bool:
        """Whether datasets and backbones are prepared where the workflow runs."""
        return self._site is None or self._site.prepare == "here"

    @property
    def limits(self) -> dict[str, int]:
        """Resources of one machine that jobs ask for; unlimited without a GPU."""
        return {"gpu_seats": SEATS * len(self._gpus)} if self._gpus else {}

    def gpu_seats(self, stage: Stage, problem: str, epochs: int) -> int:
        """How many seats of a GPU of this machine a job of a stage takes."""
        if stage in ("features", "theory") or self._study.physical_batch(problem) == "auto":
            return SEATS  # it fills the GPU
        cost = ProblemCost(self._study, problem)
        cell = cost.cell(epochs)
        gigabytes = cell.gpu_gigabytes + cell.input_gigabytes
        return seats(cost.seconds(stage, epochs), gigabytes, self._gpus)

    # -- what rules ask for ------------------------------------------------------------------

    def on_gpu(self, stage: Stage, problem: str, epochs: int) -> dict[str, Resource]:
        """Resources of a job that trains or measures something of a problem at some epochs."""
        if self._site is None:
            return {"gpu_seats": self.gpu_seats(stage, problem, epochs)}
        return self._resources(self._on_gpu(stage, problem, epochs))

    def features(self, source: FeatureSource) -> dict[str, Resource]:
        """Resources of a job that computes the features of a dataset."""
        problems = self._study.problems
        kinds = (
            (problem, epochs)
            for problem, epochs in self._study.kinds()
            if (problems[problem].dataset, problems[problem].backbone) == source
        )
        return self.on_gpu("features", *next(kinds))

    def release(self, section: Release) -> dict[str, Resource]:
        """Resources of the job that trains a release: as much time as jobs may have."""
        if self._site is None:
            return self.on_gpu("train", *self._released(section))
        return self._resources(self._release(section))

    def calibration(self) -> dict[str, Resource]:
        """Resources of a job that calibrates the noise of one (dataset, epsilon, epochs, B)."""
        return {} if self._site is None else self._resources(self._calibration())

    def preparation(self) -> dict[str, Resource]:
        """Resources of a job that prepares a dataset or a backbone."""
        return self.analysis(minutes=240, gigabytes=32)

    def analysis(self, minutes: int = 30, gigabytes: int = 8) -> dict[str, Resource]:
        """Resources of a job without a GPU."""
        return {} if self._site is None else self._resources(self._without_gpu(minutes, gigabytes))

    # -- of a cluster ------------------------------------------------------------------------

    def pack_size(self, stage: Stage, problem: str, epochs: int) -> int:
        """How many jobs of a stage share one job of the cluster.

        It follows from what a job is, so a new value of the grid changes it for no other job.
        """
        return 1 if self._site is None else self._on_gpu(stage, problem, epochs).pack

    def kinds(self) -> list[Kind]:
        """The kinds of job that the study sends: one without GPU, and one for each GPU request."""
        site, study = self._cluster, self._study
        on_gpu: dict[GpuClass, list[Request]] = {}
        for stage, problem, epochs in self._stages():
            gpu = site.gpu(study, problem, epochs)
            on_gpu.setdefault(gpu, []).append(self._on_gpu(stage, problem, epochs))
        if study.release is not None:
            gpu = site.gpu(study, *self._released(study.release))
            on_gpu.setdefault(gpu, []).append(self._release(study.release))
        plain = [self._without_gpu(), self._calibration()]
        if site.prepare == "cluster":
            plain.append(self._without_gpu(minutes=240, gigabytes=32))
        cpu = Kind("CPU", site.cpu_partition, "cpu_partition", 1, None, self._largest(plain))
        threads = study.training.threads
        return [cpu] + [
            Kind(
                gpu.request, site.gpu_partition, "gpu_partition", threads, gpu, self._largest(each)
            )
            for gpu, each in on_gpu.items()
        ]

    @property
    def _cluster(self) -> Site:
        assert self._site is not None  # noqa: S101
        return self._site

    def _stages(self) -> Iterator[tuple[Stage, str, int]]:
        """GPU jobs of the study: stage, problem and epochs."""
        study = self._study
        for problem, epochs in study.kinds():
            yield "train", problem, epochs
            yield "gradient_norms", problem, epochs
            if study.features(problem):
                yield "features", problem, epochs
        drawn = Outputs(study, Paths(Path(study.results))).drawn_theory()
        for problem, epochs in dict.fromkeys((cell.problem, cell.epochs) for cell in drawn):
            yield "theory", problem, epochs
        for cell in study.audit_cells()[:1]:  # they differ in epsilon and B only
            yield "train", cell.problem, cell.epochs

    def _released(self, section: Release) -> tuple[str, int]:
        """Problem and epochs of the longest training of a release."""
        return self._study.sweeps[section.sweep].problem.name, section.epochs[-1]

    def _on_gpu(self, stage: Stage, problem: str, epochs: int) -> Request:
        site, limit = self._cluster, self._cluster.time_limit_minutes
        gpu = site.gpu(self._study, problem, epochs)
        seconds = ProblemCost(self._study, problem, gpu.device).seconds(stage, epochs)
        minutes = min(1 + math.ceil(_MARGIN * seconds / 60), limit)
        # Every step of the job gets the signal in time: training saves its state, is requeued.
        notice = min(site.signal_seconds, int(_SIGNAL_SHARE * 60 * minutes))
        request = gpu.request if gpu.request.startswith("--") else f"--gres={gpu.request}"
        options = [request, f"--signal=USR1@{notice}"]
        gigabytes = math.ceil(cell_cost(self._study, problem, epochs).host_gigabytes)
        pack = 1 if stage == "features" else self._pack(seconds, minutes)
        threads = self._study.training.threads
        return self._request(site.gpu_partition, threads, options, minutes, gigabytes, pack)

    def _release(self, section: Release) -> Request:
        """A limit that only many trials reach would tell how many there were not."""
        request = self._on_gpu("train", *self._released(section))
        return replace(request, minutes=self._cluster.time_limit_minutes, pack=1)

    def _calibration(self) -> Request:
        pack = self._pack(60.0, _CALIBRATION_MINUTES)
        return self._without_gpu(minutes=_CALIBRATION_MINUTES, pack=pack)

    def _without_gpu(self, minutes: int = 30, gigabytes: int = 8, pack: int = 1) -> Request:
        minutes = min(minutes, self._cluster.time_limit_minutes)
        return self._request(self._cluster.cpu_partition, 1, [], minutes, gigabytes, pack)

    def _request(
        self,
        partition: str,
        threads: int,
        options: list[str],
        minutes: int,
        gigabytes: int,
        pack: int,
    ) -> Request:
        site = self._cluster
        account = [f"--account={shlex.quote(site.account)}"] if site.account else []
        named = [*account, f"--partition={shlex.quote(partition)}", f"--cpus-per-task={threads}"]
        words = " ".join([*named, *options, site.options]).strip()
        return Request(words, minutes, 1000 * gigabytes, pack)

    def _pack(self, seconds: float, minutes: int) -> int:
        """How many jobs of so many seconds, which are given so many minutes, fill a job."""
        fitting = int(60 * self._cluster.job_minutes // seconds)
        return max(1, min(fitting, self._cluster.time_limit_minutes // minutes, _LARGEST_PACK))

    def _resources(self, request: Request) -> dict[str, Resource]:
        """A request as the resources of a rule, which the workflow's executor reads."""
        limit = self._cluster.time_limit_minutes

        # What was too little is doubled for the second attempt.
        def memory(wildcards: object, attempt: int) -> int:  # noqa: ARG001 (Snakemake's names)
            return request.megabytes * attempt

        def runtime(wildcards: object, attempt: int) -> int:  # noqa: ARG001
            return min(request.minutes * attempt, limit)

        return {
            "slurm": request.options,
            "pack": request.pack,
            "pack_minutes": limit,
            "runtime": runtime,
            "mem_mb": memory,
        }

    def _largest(self, requests: list[Request]) -> Request:
        """As much as any of some jobs asks for, packed; with the options of the longest."""

        def minutes(request: Request) -> int:
            return min(request.minutes * request.pack, self._cluster.time_limit_minutes)

        longest = max(requests, key=minutes)
        megabytes = max(request.megabytes for request in requests)
        return Request(longest.options, minutes(longest), megabytes)
