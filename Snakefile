# dpsweep: from a study file to a report. `snakemake --profile demo all` runs the demo,
# `snakemake --profile slurm all` the paper's study on a cluster. `OUTPUTS` says what is made from what.
import json
import os
import re
import shlex
import signal
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError

from dpsweep.base import gpus
from dpsweep.base.errors import DpsweepError
from dpsweep.cli import preload
from dpsweep.study import commands, load_study
from dpsweep.planning.cluster import Jobs, read_site
from dpsweep.planning.outputs import NormsKey, Outputs
from dpsweep.planning.failures import (
    end_interrupted,
    failure,
    interrupted,
    jobs_begin,
    summary,
    watch_for_interrupts,
)
from dpsweep.study.fingerprints import state_fingerprint
from dpsweep.study.paths import Paths

AGAIN = os.environ.get(commands.CALL, shlex.join(["snakemake", *sys.argv[1:]]))
if workflow.is_main_process:
    watch_for_interrupts(AGAIN)


include: "workflow/rules/snakemake.smk"
include: "workflow/rules/call.smk"


# `--config partial=true` looks at a study while it runs: it draws what is there, in a folder of its
# own, and has no rule that could train anything.
PARTIAL = bool(config.get("partial", False))
try:
    STUDY = load_study(Path(STUDY_FILE))
    # Site settings of a cluster come with its profile.
    SITE = (
        read_site(config["slurm"], "profiles/slurm/site.yaml")
        if "slurm" in config
        else None
    )
    PATHS = Paths(Path(STUDY.results), PARTIAL)
    PATHS.check_writable()
    OUTPUTS = Outputs(STUDY, PATHS)
except DpsweepError as error:
    raise WorkflowError(str(error))
# On one machine each training job takes a GPU, or seats of one; without a GPU nothing limits them.
GPUS = gpus.visible_gpus() if SITE is None else []
JOBS = Jobs(STUDY, SITE, GPUS)
gpus.offer(GPUS)
for resource, limit in JOBS.limits.items():
    if resource not in workflow.global_resources:
        workflow.register_resource(resource, limit)
LOGS = PATHS.drawn / "logs"
CELL = "eps{epsilon}_epochs{epochs}_B{batch_size}_C{clipping_bound}"
# What a site needs around every command.
setup = JOBS.shell_setup(Path(workflow.basedir) / "workflow/scripts/requeue.sh")
shell.prefix(setup.replace("{", "{{").replace("}", "}}"))


include: "workflow/rules/lock.smk"
include: "workflow/rules/rerun.smk"


localrules:
    all,


rule all:
    default_target: True
    input:
        PATHS.report,
        PATHS.explore,
        [PATHS.problem(name) for name in STUDY.problems if not PARTIAL],


if not PARTIAL:

    include: "workflow/rules/prepare.smk"
    include: "workflow/rules/features.smk"
    include: "workflow/rules/calibrate.smk"
    include: "workflow/rules/train.smk"
    include: "workflow/rules/gradnorms.smk"
    include: "workflow/rules/theory.smk"
    include: "workflow/rules/aggregate.smk"
    include: "workflow/rules/audit.smk"
    include: "workflow/rules/release.smk"


include: "workflow/rules/figures.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/plan.smk"


onstart:
    jobs_begin()
    hold_lock()  # again: when another call ends, Snakemake removes the folder of its lock
    if not workflow.non_local_exec:
        preload.start()
    else:
        # Jobs of a cluster are long and elsewhere. To end this process is to end them, as Ctrl-C does:
        # they save their state.
        signal.signal(signal.SIGTERM, signal.default_int_handler)


onsuccess:
    # `make demo` names its report itself.
    made = {job.rule.name for job in workflow.dag.finished_jobs}
    if commands.CALL in os.environ and "report" in made:
        # After the last line of progress, which another thread prints.
        logger.warning(f"Report: {PATHS.report.resolve()}")


onerror:
    # Those that this run has begun and not finished were stopped, or failed without a word to Snakemake.
    jobs = {*workflow.scheduler.failed, *begun_jobs(workflow.dag)}
    failures = [failure(job.output, job.log, job.rule.name) for job in jobs]
    failures.sort(key=lambda each: str(each.log))
    waiting = len(set(workflow.scheduler.remaining_jobs) - jobs)
    if interrupted():
        end_interrupted(AGAIN)
    print(*summary(failures, AGAIN, waiting), sep="\n", file=sys.stderr, flush=True)
