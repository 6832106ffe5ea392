"""Snakemake's Slurm plugin for packed jobs: seven changes to `snakemake_executor_plugin_slurm`.

* A job of Slurm runs one inner Snakemake, inside one job step, where the plugin nests two.
* That inner Snakemake does the members of a pack one after the other, and goes on when one fails.
* Old outputs of all members are deleted at submission. Snakemake takes what it finds after a failed
  pack for new, although the job may have ended before it came to a member.
* Members of a failed pack that left their outputs count as done: what needs only them goes on, and
  the next attempt is for the others.
* An account that is set to "" means none; the plugin would guess one.
* A run ends when its last job has, and not only when the next look at jobs is due.
* Jobs stay known while the controller does not answer. The plugin forgets them then, and the run
  would wait for ever.
"""

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

from snakemake.jobs import GroupJob
from snakemake_executor_plugin_slurm import Executor as SlurmExecutor
from snakemake_executor_plugin_slurm import ExecutorSettings
from snakemake_executor_plugin_slurm import common_settings as slurm_settings
from snakemake_executor_plugin_slurm_jobstep import get_cpu_setting
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface

__all__ = ["Executor", "ExecutorSettings", "common_settings"]

# The wait before the first look is `sleep`, below.
common_settings = dataclasses.replace(slurm_settings, init_seconds_before_status_checks=0)


class Executor(SlurmExecutor):  # type: ignore[misc]
    """Submits jobs and packs of jobs to Slurm."""

    @property
    def cores(self) -> int:
        """Cores of the inner Snakemake: members of a pack take turns."""
        return 1

    def additional_general_args(self) -> str:
        """Arguments of the inner Snakemake."""
        return "--executor local --keep-going"

    def format_job_exec(self, job: JobExecutorInterface) -> str:
        """The command of a Slurm job: a step of it, so that signals reach the training."""
        cpus = get_cpu_setting(job, gpu=False)
        return f"srun --ntasks=1 --cpu-bind=q {cpus} {super().format_job_exec(job)}"

    def get_account_arg(self, job: JobExecutorInterface) -> Iterator[str]:
        """The sbatch option that names the account, if the site has accounts."""
        if job.resources.get("slurm_account") == "":
            yield ""
        else:
            yield from super().get_account_arg(job)

    def run_jobs(self, jobs: list[JobExecutorInterface]) -> None:
        """Submit jobs that are ready."""
        for job in jobs:
            self.workflow.async_run(job.remove_existing_output())
        super().run_jobs(jobs)

    def handle_job_error(self, job: JobExecutorInterface) -> None:
        """Finish the members of a failed pack that are done (called with the scheduler's lock)."""
        super().handle_job_error(job)
        if not job.is_group():
            return
        done = frozenset(each for each in job.jobs if all(Path(f).exists() for f in each.output))
        if not done or done == job.jobs:
            return
        scheduler, dag = self.workflow.scheduler, self.workflow.dag
        # Sets know a group by its members, so it leaves them while those change.
        scheduler.running.remove(job)
        dag._running.remove(job)
        job.jobs = frozenset(job.jobs - done)
        for cached in ("_toposorted", "_resources", "_input", "_output", "_log", "_all_products"):
            setattr(job, cached, None)
        job.finalize()
        scheduler.running.add(job)
        finished = GroupJob(job.groupid, done, job.global_resources)
        finished.finalize()
        dag.register_running({finished})
        self.workflow.async_run(dag.finish(finished))
        scheduler.finished_jobs += len(done)

    async def sleep(self) -> None:
        """Wait for the next look at jobs, or for the end of the run."""
        for _ in range(int(self.next_seconds_between_status_checks)):
            if not self.wait:
                return
            await asyncio.sleep(1)

    async def check_active_jobs(
        self, active_jobs: list[SubmittedJobInfo]
    ) -> AsyncGenerator[SubmittedJobInfo, None]:
        """Yield the jobs that are not known to have ended."""
        self._settled: set[str | None] = set()
        yielded = set()
        async for job in super().check_active_jobs(active_jobs):
            yielded.add(job.external_jobid)
            yield job
        for job in active_jobs:
            if job.external_jobid not in yielded | self._settled:
                yield job

    def report_job_success(self, job_info: SubmittedJobInfo) -> None:
        """Note that a job has ended well."""
        self._settled.add(job_info.external_jobid)
        super().report_job_success(job_info)

    def report_job_error(self, job_info: SubmittedJobInfo, *args: Any, **kwargs: Any) -> None:
        """Note that a job has failed."""
        self._settled.add(job_info.external_jobid)
        super().report_job_error(job_info, *args, **kwargs)
