"""Slurm for Snakemake: short jobs of one rule share a job of Slurm, and each ends for itself.

Snakemake's own groups fail as a whole, and so do the groups of its Slurm plugin: one bad cell would
stop all that share a job with it. This executor is handed single jobs and packs them on their way to
Slurm, as the interface of executors allows. A job of Slurm runs one inner Snakemake, in one job step,
which does its members one after the other and goes on when one fails. When it has ended, each member
that left its outputs has succeeded; the others have failed, with Slurm's own words in their logs.

Slurm need not answer at any time: what is not known stays as it is until the next look.
"""

import asyncio
import threading
import time
import uuid
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.settings import CommonSettings, ExecutorSettingsBase

from dpsweep.planning import failures, slurm

# A pack that is not full is sent when no job has come for so long.
_QUIET_SECONDS = 3.0
# How long to wait for a controller that does not answer, or that takes no more jobs for now.
_RETRY_SECONDS = 60.0

common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,
    job_deploy_sources=False,
    pass_envvar_declarations_to_cmd=False,
    auto_deploy_default_storage_provider=False,
)


@dataclass
class ExecutorSettings(ExecutorSettingsBase):
    """Settings of the profile."""

    jobs: int = field(
        default=100, metadata={"help": "Jobs of Slurm that wait or run at any time.", "type": int}
    )
    seconds_between_submissions: float = field(
        default=6.0, metadata={"help": "Seconds from one job to the next.", "type": float}
    )
    logdir: str = field(
        default="results/logs/slurm", metadata={"help": "Slurm's logs of jobs that failed."}
    )


class Pack:
    """Jobs of one rule that share a job of Slurm.

    Snakemake's command line asks this of a job: a pack is its first job, with the targets and the
    inputs of all.
    """

    def __init__(self, jobs: list[JobExecutorInterface]) -> None:
        self.jobs = jobs

    def __getattr__(self, name: str) -> Any:
        return getattr(self.jobs[0], name)

    @property
    def output(self) -> list[str]:
        """The outputs of all jobs."""
        return [file for job in self.jobs for file in job.output]

    def get_target_spec(self) -> list[Any]:
        """Targets of the inner Snakemake."""
        return [target for job in self.jobs for target in job.get_target_spec()]

    def get_wait_for_files(self) -> list[str]:
        """The inputs of all jobs."""
        return list(dict.fromkeys(file for job in self.jobs for file in job.get_wait_for_files()))

    def request(self) -> slurm.Request:
        """Request of the pack to Slurm: members take turns, so their times add up."""
        resources = [job.resources for job in self.jobs]
        minutes = sum(each["runtime"] for each in resources)
        return slurm.Request(
            options=resources[0]["slurm"],
            minutes=min(minutes, resources[0]["pack_minutes"]),
            megabytes=max(each["mem_mb"] for each in resources),
        )


@dataclass
class Waiting:
    """Jobs that will share packs: same rule, same attempt."""

    jobs: list[JobExecutorInterface] = field(default_factory=list)
    latest: float = 0.0
    taken: bool = False
    """whether Slurm has taken such jobs in this run"""

    def next_pack(self) -> Pack | None:
        """Take a pack out, if there is one to be sent now."""
        if not self.jobs:
            return None
        size = self.jobs[0].resources["pack"]
        if len(self.jobs) < size and time.monotonic() - self.latest < _QUIET_SECONDS:
            return None
        pack, self.jobs = Pack(self.jobs[:size]), self.jobs[size:]
        return pack


class Executor(RemoteExecutor):  # type: ignore[misc]
    """Submits packs of jobs to Slurm and tells how each of their members ended."""

    def __post_init__(self) -> None:
        """Refuse to start where there is no Slurm; start submitting."""
        # All jobs of a run have one name: one call of squeue asks for all of them.
        self._name = f"dpsweep-{uuid.uuid4().hex[:12]}"
        try:
            slurm.states(self._name)
        except slurm.SlurmError as error:
            raise WorkflowError(
                f"Slurm does not answer on this machine, so nothing was started:\n{error}\n"
                "`dpsweep doctor --site profiles/slurm/site.yaml` looks closer."
            ) from error
        self._waiting: dict[tuple[str, int], Waiting] = {}
        self._waiting_lock = threading.Lock()
        self._active: dict[str, Path] = {}
        """Slurm's numbers of jobs that are not known to have ended, with their logs"""
        self._lost: set[str] = set()
        """Jobs that were lost at the last look: Slurm has requeued them by the next, or they ended"""
        self._submitter = threading.Thread(target=self._submit_all, daemon=True)
        self._submitter.start()

    # -- what Snakemake calls, and what a job of Slurm runs ---------------------------------------

    def run_jobs(self, jobs: list[JobExecutorInterface]) -> None:
        """Take jobs that are ready."""
        with self._waiting_lock:
            for job in jobs:
                waiting = self._waiting.setdefault((job.name, job.attempt), Waiting())
                waiting.jobs.append(job)
                waiting.latest = time.monotonic()

    def run_job(self, job: JobExecutorInterface) -> None:
        """Take one job that is ready."""
        self.run_jobs([job])

    @property
    def cores(self) -> int:
        """Cores of the inner Snakemake: members of a pack take turns."""
        return 1

    def additional_general_args(self) -> str:
        """Arguments of the inner Snakemake."""
        return "--executor local --keep-going"

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:
        """End all jobs (Ctrl-C); what trains saves its state first."""
        with self.lock:
            self.wait = False
        self._submitter.join()
        # Jobs that are just looked at are not among the active ones that Snakemake knows.
        numbers = {info.external_jobid for info in active_jobs} | set(self._active)
        try:
            slurm.cancel(numbers)
        except slurm.SlurmError as error:
            command = f"scancel {' '.join(sorted(numbers))}"
            self.logger.error(f"jobs may go on, end them with `{command}`: {error}")

    def shutdown(self) -> None:
        """End the threads."""
        super().shutdown()
        self._submitter.join()

    def print_job_error(
        self, job_info: SubmittedJobInfo, msg: str | None = None, **kwargs: Any
    ) -> None:
        """Show how a job failed."""
        job_info.job.log_error(msg, **kwargs)

    async def sleep(self) -> None:
        """Wait for the next look at jobs, or for the end of the run."""
        for _ in range(int(self.next_seconds_between_status_checks)):
            if not self.wait:
                return
            await asyncio.sleep(1)

    # -- submission ------------------------------------------------------------------------------

    def _submit_all(self) -> None:
        """Submit what waits, pack by pack, until the run ends."""
        pause = 0.0
        while self.wait:
            if time.monotonic() < pause:
                time.sleep(0.1)
            elif taken := self._next_pack():
                pause = time.monotonic() + self._submit(*taken)
            else:
                time.sleep(0.2)

    def _next_pack(self) -> tuple[Waiting, Pack] | None:
        """A pack to be sent now; kinds of jobs take turns."""
        if len(self._active) >= self.executor_settings.jobs:
            return None
        with self._waiting_lock:
            for kind, waiting in self._waiting.items():
                if pack := waiting.next_pack():
                    self._waiting[kind] = self._waiting.pop(kind)
                    return waiting, pack
        return None

    def _submit(self, waiting: Waiting, pack: Pack) -> float:
        """Hand a pack to Slurm; return how many seconds to wait before the next one."""
        for file in pack.output:
            # The job may end before it comes to a member: nothing old may then pass for new.
            Path(file).unlink(missing_ok=True)
        log = Path(self.executor_settings.logdir).absolute() / pack.name / "%j.log"
        # One job step, so that signals reach the training; it does not take over the number of CPUs.
        cpus = "${SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK}"
        command = f"srun --ntasks=1 --cpu-bind=q {cpus} {self.format_job_exec(pack)}"
        try:
            number = slurm.submit(pack.request(), command, self._name, log)
        except slurm.SlurmError as error:
            # No controller, or one that takes no more of our jobs until others have ended.
            if error.unreachable or (waiting.taken and self._active):
                self.logger.warning(f"a job is not submitted yet: {error}")
                with self._waiting_lock:
                    waiting.jobs = pack.jobs + waiting.jobs
                return _RETRY_SECONDS
            self._fail(pack.jobs, f"submission refused: {error}")
            return 0.0
        except OSError as error:
            self._fail(pack.jobs, f"submission failed: {error}")
            return 0.0
        waiting.taken = True
        log = log.with_name(f"{number}.log")
        self._active[number] = log
        for job in pack.jobs:
            self.run_job_pre(job)
            self.report_job_submission(SubmittedJobInfo(job, number))
        return self.executor_settings.seconds_between_submissions

    # -- how jobs end ----------------------------------------------------------------------------

    async def check_active_jobs(
        self, active_jobs: list[SubmittedJobInfo]
    ) -> AsyncGenerator[SubmittedJobInfo, None]:
        """Yield the jobs that are not known to have ended; report the others."""
        members: dict[str, list[SubmittedJobInfo]] = {}
        for info in active_jobs:
            members.setdefault(info.external_jobid, []).append(info)
        try:
            states = await asyncio.to_thread(slurm.states, self._name) if members else {}
        except slurm.SlurmError as error:
            self.logger.warning(f"jobs go on, but Slurm does not answer: {error}")
            for info in active_jobs:
                yield info
            return
        lost = {number for number in members if slurm.lost(states.get(number))}
        for number, infos in members.items():
            state = states.get(number)
            if state == "COMPLETED" or slurm.failed(state) or number in lost & self._lost:
                self._settle(number, infos, state == "COMPLETED")
            else:
                for info in infos:
                    yield info
        self._lost = lost

    def _settle(self, number: str, members: list[SubmittedJobInfo], success: bool) -> None:
        """Report how each member of a job that has ended did."""
        log = self._active.pop(number)
        failed = []
        for info in members:
            if success or all(Path(file).exists() for file in info.job.output):
                self.report_job_success(info)
            else:
                failed.append(info.job)
        if failed:
            self._fail(failed, "\n".join([slurm.ending(number), *_words(log)]), number, log)
        else:
            log.unlink(missing_ok=True)

    def _fail(
        self,
        jobs: list[JobExecutorInterface],
        words: str,
        number: str | None = None,
        slurm_log: Path | None = None,
    ) -> None:
        """Report jobs as failed, and write into their logs why."""
        if slurm_log is not None:
            words += f"\nSlurm's log: {_relative(slurm_log)}"
        for job in jobs:
            for log in job.log:
                failures.note(Path(log), words)
            self.report_job_error(SubmittedJobInfo(job, number), msg=words)


def _words(log: Path) -> list[str]:
    """Read the log of a job: Slurm's own errors, or else the error that it ends with."""
    return slurm.own_words(log) or failures.error_lines(failures.tail(log))


def _relative(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
