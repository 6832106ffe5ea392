# What this workflow takes from Snakemake beyond its documentation, checked before anything starts.
#
# One setting is changed. `--max-jobs-per-timespan` has the default 100/1s and no value for "no limit",
# although its class has one, None. With a limit, every decision of the scheduler starts a timer that
# leads to another decision (JobScheduler.schedule), so each job that ends adds a timer for good: after
# 2,000 jobs the scheduler decides 2,000 times a second. Text for a report to github.com/snakemake/snakemake:
#
#   Scheduler: timers multiply with --max-jobs-per-timespan (set by default)
#   In JobScheduler.schedule, `self._schedule_reevalutation(self.job_rate_limiter.timespan)` runs at the
#   end of every pass of the loop, and each timer releases `_open_jobs`, which makes another pass. Every
#   job that ends therefore adds one timer that renews itself for ever; with thousands of short jobs the
#   main process spends all its time there. To see it: 2,000 jobs `touch {output}`, and the number of
#   threads or passes a second over time. A new timer is needed only while none is pending.
from dataclasses import fields

import snakemake
from snakemake.scheduling.job_scheduler import JobScheduler
from snakemake.settings.types import SchedulingSettings

# As in pyproject.toml.
TESTED = "9.27"


def check_snakemake():
    found = snakemake.__version__
    lacking = [
        name
        for name, there in (
            (
                "SchedulingSettings.max_jobs_per_timespan",
                "max_jobs_per_timespan"
                in {field.name for field in fields(SchedulingSettings)},
            ),
            (
                "JobScheduler.failed",
                "failed" in JobScheduler.__init__.__code__.co_names,
            ),
            ("JobScheduler.remaining_jobs", hasattr(JobScheduler, "remaining_jobs")),
        )
        if not there
    ]
    if not found.startswith(f"{TESTED}.") or lacking:
        raise WorkflowError(
            f"dpsweep runs with Snakemake {TESTED}, and this is Snakemake {found}"
            + "".join(f"\nIt has no {name}" for name in lacking)
            + f"\nInstall one that works: pip install 'snakemake=={TESTED}.*'"
        )


check_snakemake()
# There are no such settings where nothing is scheduled (`snakemake --lint`).
if workflow.scheduling_settings is not None:
    workflow.scheduling_settings.max_jobs_per_timespan = None
