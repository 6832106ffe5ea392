# From a study file to a report. `snakemake --profile demo all` runs the demo, `--profile slurm` on a cluster.
import os
import signal
from pathlib import Path

from snakemake.exceptions import WorkflowError
from dpsweep.base.errors import DpsweepError
from dpsweep.cli import preload, run
from dpsweep.planning.outputs import Outputs
from dpsweep.release import refuse_unaccounted, refused_problems
from dpsweep.study import fingerprints, load_study
from dpsweep.study.cells import Cell, FeatureSource
from dpsweep.study.load import RESULTS, begin
from dpsweep.study.paths import Paths
from workflow.resources import JobResources

# Slurm signals the end of a job to all its processes. Snakemake ignores the signal; the training handles it.
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
try:
    STUDY = load_study(begin(config))
    Paths(R := Path(STUDY.results)).check_writable()
    REFUSED = refused_problems(STUDY)
except DpsweepError as error:
    raise WorkflowError(str(error))
os.environ[RESULTS] = STUDY.results
OUTPUTS, JOBS = Outputs(STUDY, Paths(R)), JobResources(STUDY)
run.show_requests(workflow)
shell.prefix(f". '{workflow.source_path('workflow/scripts/requeue.sh')}'; ")


wildcard_constraints:
    backbone="|".join(STUDY.backbones),
    dataset="|".join(STUDY.datasets),
    problem="|".join(STUDY.problems),
    figure="|".join(STUDY.figures),
    table=OUTPUTS.tables_with("csv"),
    settings="[0-9a-f]{10}",


onstart:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # Snakemake's own handler may wait for ever
    # No limit of jobs per second, as by default in Snakemake's API. With one, every finished job adds a timer that wakes
    # the scheduler again and again while jobs are ready: hours of processor time (python -m benchmarks.speed.scheduler).
    workflow.scheduler.job_rate_limiter = None
    preload.start()
    run.show_progress()


# All files, because Snakemake does not make a missing input of a target that is up to date.
rule all:
    input:
        OUTPUTS.files(),


include: "workflow/rules/common.smk"
include: "workflow/rules/prepare.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/analyse.smk"
include: "workflow/rules/audit.smk"
include: "workflow/rules/release.smk"
include: "workflow/rules/check.smk"


# A figure, a table or a problem by its name: `snakemake fig1_accuracy_heatmaps`.
for NAME in (*STUDY.figures, *STUDY.tables, *STUDY.problems):
    if not workflow.is_rule(workflow.modifier.modify_rulename(NAME)):

        rule:
            name:
                NAME
            input:
                lambda w, name=NAME: OUTPUTS.named(name)[0].files,
