# dpsweep: from a study file to a report. `snakemake --profile demo all` runs the demo,
# `snakemake --profile slurm all` the paper's study on a cluster.
import re
import signal
from pathlib import Path

from snakemake.exceptions import WorkflowError

from dpsweep.base.errors import DpsweepError
from dpsweep.cli import preload, progress
from dpsweep.planning.outputs import Outputs
from dpsweep.study import commands, fingerprints, load_study
from dpsweep.study.paths import Paths
from workflow.resources import JobResources

# Slurm announces the end of a job to all of its processes. It concerns the training; Snakemake waits.
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
try:
    STUDY = load_study(commands.begin(config))
    Paths(Path(STUDY.results)).check_writable()
except DpsweepError as error:
    raise WorkflowError(str(error))
R = Path(STUDY.results)
OUTPUTS = Outputs(STUDY, Paths(R))
JOBS = JobResources(STUDY)
shell.prefix(f". '{workflow.source_path('workflow/scripts/requeue.sh')}'; ")


wildcard_constraints:
    backbone="|".join(map(re.escape, STUDY.backbones)),
    dataset="|".join(map(re.escape, STUDY.datasets)),
    problem="|".join(map(re.escape, STUDY.problems)),
    cell=r"eps[^/]+",
    epochs=r"\d+",
    batch_size=r"\d+|full",
    made_for="[0-9a-f]{10}",


onstart:
    # SIGTERM ends a run as Ctrl-C does. Snakemake's own handler may wait for a lock that its thread holds.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    preload.start()
    progress.start()


# Every file is named: Snakemake does not make one that is missing behind a newer target.
rule all:
    input:
        OUTPUTS.files(),


include: "workflow/rules/prepare.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/analyse.smk"
include: "workflow/rules/audit.smk"
include: "workflow/rules/release.smk"
