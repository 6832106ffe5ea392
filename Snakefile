# dpsweep: from a study file to a report. `snakemake --profile demo all` runs the demo,
# `snakemake --profile slurm all` the paper's study on a cluster.
import argparse
import json
import os
import re
import shlex
import signal
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.utils import min_version

from dpsweep import preload
from dpsweep.errors import DpsweepError
from dpsweep.study import commands, load_study
from dpsweep.planning.cluster import Jobs, read_site
from dpsweep.study.inputs import (
    backbone_inputs,
    dataset_inputs,
    state_fingerprint,
    target_inputs,
)
from dpsweep.study.paths import Paths

min_version("9.27")

# Rules call `dpsweep` by name: it lies beside the Python that runs this, whether or not its environment
# is activated.
os.environ["PATH"] = os.pathsep.join(
    [str(Path(sys.executable).parent), os.environ["PATH"]]
)
# A study is named with `--config study=`, but habit says --configfile.
STUDY_FILE = config.get("study", "config.yaml")
if "study" not in config and not config.keys().isdisjoint({"extends", "sweeps"}):
    studies = [
        file
        for file in workflow.overwrite_configfiles
        if re.search(
            r"^(extends|sweeps):", Path(file).read_text(encoding="utf-8"), re.MULTILINE
        )
    ]
    if len(studies) != 1:
        raise WorkflowError(
            "name one study: snakemake --config study=studies/mine.yaml -- all"
        )
    STUDY_FILE = studies[0]
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
except DpsweepError as error:
    raise WorkflowError(str(error))
JOBS = Jobs(STUDY, SITE)
LOGS = PATHS.drawn / "logs"
CELL = "eps{epsilon}_epochs{epochs}_B{batch_size}_C{clipping_bound}"
# How many jobs of a group share a job of the cluster; the profile turns names into numbers.
workflow.parent_groupids.update(JOBS.packs)
# What a site needs around every command.
setup = JOBS.shell_setup(Path(workflow.basedir) / "workflow/scripts/requeue.sh")
shell.prefix(setup.replace("{", "{{").replace("}", "}}"))
# The commands that messages suggest are for this machine: they repeat its profile and site settings.
site_options = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
site_options.add_argument("--profile", action="append", default=[])
site_options.add_argument("--configfile", "--configfiles", nargs="+", default=[])
given, _ = site_options.parse_known_args()
os.environ.setdefault(
    commands.OPTIONS,
    shlex.join(
        [
            *(f"--profile={profile}" for profile in given.profile),
            *(["--configfile", *given.configfile] if given.configfile else []),
        ]
    ),
)
# Slurm announces a time limit to every process of a job. This one leaves it to the training.
signal.signal(signal.SIGUSR1, signal.SIG_IGN)


include: "workflow/rules/lock.smk"
include: "workflow/rules/rerun.smk"


localrules:
    all,


rule all:
    default_target: True
    input:
        PATHS.report,
        [PATHS.problem(name) for name in STUDY.problems if not PARTIAL],


if not PARTIAL:

    include: "workflow/rules/prepare.smk"
    include: "workflow/rules/calibrate.smk"
    include: "workflow/rules/train.smk"
    include: "workflow/rules/gradnorms.smk"
    include: "workflow/rules/aggregate.smk"
    include: "workflow/rules/audit.smk"


include: "workflow/rules/figures.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/plan.smk"
include: "workflow/rules/scheduling.smk"


onstart:
    hold_lock()
    one_timer_at_a_time(workflow.scheduler)
    # Jobs of a cluster are long and elsewhere.
    if SITE is None:
        preload.start()


onerror:
    again = shlex.join(["snakemake", *sys.argv[1:]])
    # The jobs of this run that began and did not end well; others may have failed before.
    unfinished = LOGS / "unfinished.txt"
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    unfinished.write_text(
        "".join(f"{log}\n" for log in unfinished_logs(workflow.dag))
    )
    shell(
        "dpsweep status --failed --study {STUDY_FILE:q} --logs {unfinished:q} --again {again:q}"
    )
