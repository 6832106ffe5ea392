# Snakemake decides by times of writing and by its own records, which may be lost. dpsweep knows what
# every output was made from: what is not as the study asks for it depends on a file that counts as newer
# (snakemake.smk).
import uuid

from dpsweep.base.files import write_text
from dpsweep.planning.provenance import clear_the_way, explain, problems

NEWER = Path(".snakemake/newer")  # a dry run leaves nothing among the results
NOT_CURRENT = {}
if workflow.is_main_process and not PARTIAL:
    outputs = list(OUTPUTS.every())
    if not {"-n", "--dry-run", "--dryrun"} & set(sys.argv):
        for line in clear_the_way(PATHS, outputs):
            logger.warning(line)
    NOT_CURRENT = problems(PATHS, outputs)
    # Snakemake compares contents too.
    write_text(NEWER, f"{uuid.uuid4()}\n")
    for problem in explain(
        {name: each for name, each in NOT_CURRENT.items() if each.kind == "changed"}
    ):
        logger.warning(f"{problem}; it is made again")


def again(output):
    """An input for the rule that makes an output; its name may have wildcards."""

    def newer(wildcards):
        if PARTIAL or not workflow.is_main_process:
            return []
        return (
            NEWER if output.format(**wildcards) in NOT_CURRENT else ancient(str(NEWER))
        )

    return newer


def study_file(wildcards, input):
    """The name of the study's file. Snakemake runs nothing again for what may follow from inputs."""
    return STUDY_FILE


def begun_jobs(dag):
    """The jobs that this run has begun and not finished: they have written to their logs."""
    return {
        job
        for job in dag.needrun_jobs()
        if any(
            Path(log).exists() and Path(log).stat().st_mtime_ns > STARTED
            for log in job.log
        )
    }
