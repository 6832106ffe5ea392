# What this workflow takes from Snakemake beyond its documentation, checked before anything starts.
#
# The scheduler is told that it has no limit of jobs per time. `--max-jobs-per-timespan` has the default
# 100/1s and no value for "no limit", and a Snakefile is read before the settings are there. With a limit, every decision of the scheduler starts a timer that
# leads to another decision (JobScheduler.schedule), so each job that ends adds a timer for good: after
# 2,000 jobs the scheduler decides 2,000 times a second. Text for a report to github.com/snakemake/snakemake:
#
#   Scheduler: timers multiply with --max-jobs-per-timespan (set by default)
#   In JobScheduler.schedule, `self._schedule_reevalutation(self.job_rate_limiter.timespan)` runs at the
#   end of every pass of the loop, and each timer releases `_open_jobs`, which makes another pass. Every
#   job that ends therefore adds one timer that renews itself for ever; with thousands of short jobs the
#   main process spends all its time there. To see it: 2,000 jobs `touch {output}`, and the number of
#   threads or passes a second over time. A new timer is needed only while none is pending.
#
# What is made again is decided by dpsweep, which knows what every output was made from
# (`dpsweep.planning.provenance`): its jobs are forced to run, as with --forcerun, but do not become targets.
# Times of files and Snakemake's own records decide nothing. Clocks of machines differ, a clock that is set
# back dates files in the future, and records may be lost. Snakemake makes an output again whose input is
# newer, and fails a job whose output is older than an input.
#
# In a workflow that uses this one as a module, Snakemake decides about the other rules as always.
#
# The scheduler's lock may be taken twice by one thread. SIGTERM is handled in the main thread, and the handler
# (JobScheduler.exit_gracefully) takes the lock: if the main thread holds it already, because a job has just
# ended, it would wait for itself for ever.
import threading
from functools import cache

import snakemake
from snakemake.dag import DAG
from snakemake.exceptions import WorkflowError
from snakemake.io import _IOFile
from snakemake.scheduling.job_scheduler import JobScheduler
from snakemake.settings.types import RerunTrigger

# As in pyproject.toml.
TESTED = "9.27"
# The folder of the Snakefile, also where another workflow uses it as a module.
PROJECT = Path(workflow.current_basedir.get_path_or_uri(secret_free=True)).parents[1]
# Files whose jobs run again if they are needed.
FORCED = set()
# Snakemake has no value for "no trigger" and always looks at times; `is_newer` below says never.
RERUN_TRIGGERS = {RerunTrigger.MTIME}


def check_snakemake():
    found = snakemake.__version__
    lacking = [
        name
        for name, there in (
            (
                "JobScheduler.job_rate_limiter",
                "job_rate_limiter" in JobScheduler.__init__.__code__.co_names,
            ),
            (
                "JobScheduler.failed",
                "failed" in JobScheduler.__init__.__code__.co_names,
            ),
            (
                "JobScheduler._lock",
                "_lock" in JobScheduler.__init__.__code__.co_names,
            ),
            ("JobScheduler.remaining_jobs", hasattr(JobScheduler, "remaining_jobs")),
            ("DAG.init", hasattr(DAG, "init")),
            ("DAG.forcefiles", "forcefiles" in DAG.__init__.__code__.co_names),
            ("DAG.check_output_mtime", hasattr(DAG, "check_output_mtime")),
            ("_IOFile.is_newer", hasattr(_IOFile, "is_newer")),
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
# None is its own value for "no limit"; what it is set to later is not kept.
JobScheduler.job_rate_limiter = property(
    lambda scheduler: None, lambda scheduler, limiter: None
)
LOCK = threading.RLock()
JobScheduler._lock = property(lambda scheduler: LOCK, lambda scheduler, lock: None)


SNAKEMAKES_INIT = DAG.init
SNAKEMAKES_CHECK_OUTPUT_MTIME = DAG.check_output_mtime
SNAKEMAKES_IS_NEWER = _IOFile.is_newer


@cache
def is_ours(snakefile):
    file = Path(snakefile)
    return (
        file == PROJECT / "Snakefile" or file.parent == PROJECT / "workflow" / "rules"
    )


async def init(dag, *arguments, **options):
    dag.forcefiles |= FORCED
    if all(is_ours(each.snakefile) for each in dag.workflow.rules):
        dag.workflow.dag_settings.rerun_triggers = RERUN_TRIGGERS
    await SNAKEMAKES_INIT(dag, *arguments, **options)


async def is_newer(file, time):
    ours = file.rule is not None and is_ours(file.rule.snakefile)
    return not ours and await SNAKEMAKES_IS_NEWER(file, time)


async def check_output_mtime(dag, job, outputs):
    if not is_ours(job.rule.snakefile):
        await SNAKEMAKES_CHECK_OUTPUT_MTIME(dag, job, outputs)


DAG.init = init
DAG.check_output_mtime = check_output_mtime
_IOFile.is_newer = is_newer
