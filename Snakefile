# dpsweep: from a study file to a report. `snakemake --profile demo all` runs the demo,
# `snakemake --profile slurm all` the paper's study on a cluster. `OUTPUTS` says what is made from what.
import re
import signal
from pathlib import Path

from snakemake.exceptions import WorkflowError

from dpsweep.base.errors import DpsweepError
from dpsweep.planning import call
from dpsweep.planning.outputs import NormsKey, Outputs, prepared_files
from dpsweep.study import Cell, load_study
from dpsweep.study.fingerprints import state_fingerprint
from dpsweep.study.paths import Paths
from workflow.resources import JobResources

# Slurm announces the end of a job to all of its processes. It concerns the training; Snakemake waits.
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
if workflow.is_main_process:
    call.watch_for_interrupts()


include: "workflow/rules/snakemake.smk"


call.prepare_environment()
# `--config partial=true` looks at a study while it runs: it draws what is there, in a folder of its
# own, and has no rule that could train anything.
PARTIAL = bool(config.get("partial", False))
try:
    STUDY_FILE = call.study_file(config, workflow.overwrite_configfiles)
    STUDY = load_study(Path(STUDY_FILE))
    PATHS = Paths(Path(STUDY.results), PARTIAL)
    PATHS.check_writable()
except DpsweepError as error:
    raise WorkflowError(str(error))
OUTPUTS = Outputs(STUDY, PATHS)
JOBS = JobResources(STUDY)
LOGS = PATHS.drawn / "logs"
shell.prefix(f". '{workflow.source_path('workflow/scripts/requeue.sh')}'; ")


include: "workflow/rules/call.smk"
include: "workflow/rules/current.smk"


localrules:
    all,


wildcard_constraints:
    backbone="|".join(map(re.escape, STUDY.backbones)),
    dataset="|".join(map(re.escape, STUDY.datasets)),
    epochs=r"\d+",
    batch_size=r"\d+|full",
    made_for="[0-9a-f]{10}",


rule all:
    default_target: True
    input:
        PATHS.report,
        PATHS.explore,
        [PATHS.problem(name) for name in STUDY.problems if not PARTIAL],


if not PARTIAL:

    include: "workflow/rules/prepare.smk"
    include: "workflow/rules/train.smk"
    include: "workflow/rules/audit.smk"
    include: "workflow/rules/release.smk"


include: "workflow/rules/draw.smk"
include: "workflow/rules/plan.smk"
include: "workflow/rules/check.smk"
