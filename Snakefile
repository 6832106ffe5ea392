# dpsweep: from a study file to a report. `snakemake --profile demo all` runs the demo,
# `snakemake --profile slurm all` the paper's study on a cluster. `OUTPUTS` says what is made from what.
import json
import re
from pathlib import Path

from snakemake.exceptions import WorkflowError

from dpsweep.base import gpus
from dpsweep.base.errors import DpsweepError
from dpsweep.planning import call
from dpsweep.planning.cluster import Jobs, read_site
from dpsweep.planning.outputs import NormsKey, Outputs, prepared_files
from dpsweep.study import Cell, load_study
from dpsweep.study.fingerprints import state_fingerprint
from dpsweep.study.paths import Paths

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
    # Site settings of a cluster come with its profile.
    SITE = (
        read_site(config["slurm"], "profiles/slurm/site.yaml")
        if "slurm" in config
        else None
    )
    PATHS = Paths(Path(STUDY.results), PARTIAL)
    PATHS.check_writable()
except DpsweepError as error:
    raise WorkflowError(str(error))
OUTPUTS = Outputs(STUDY, PATHS)
# On one machine each training job takes a GPU, or seats of one; without a GPU nothing limits them.
GPUS = gpus.visible_gpus() if SITE is None else []
JOBS = Jobs(STUDY, SITE, GPUS)
gpus.offer(GPUS)
for resource, limit in JOBS.limits.items():
    if resource not in workflow.global_resources:
        workflow.register_resource(resource, limit)
LOGS = PATHS.drawn / "logs"
# What a site needs around every command.
setup = JOBS.shell_setup(PROJECT / "workflow/scripts/requeue.sh")
shell.prefix(setup.replace("{", "{{").replace("}", "}}"))


include: "workflow/rules/call.smk"
include: "workflow/rules/current.smk"


localrules:
    all,


wildcard_constraints:
    backbone="|".join(map(re.escape, STUDY.backbones)),
    dataset="|".join(map(re.escape, STUDY.datasets)),
    epochs=r"\d+",
    batch_size=r"\d+|full",


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
