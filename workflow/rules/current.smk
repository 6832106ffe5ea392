# What is made again: dpsweep knows what every output was made from, and Snakemake is told whose jobs to run.
import sys

from dpsweep.planning.provenance import clear_the_way, explain, not_current

if PARTIAL:
    # The state of what a figure is drawn from is among its params.
    RERUN_TRIGGERS.update(RerunTrigger.all())
elif workflow.is_main_process:
    outputs = list(OUTPUTS.every())
    outputs += [each for each in OUTPUTS.only_by_name() if each.files[0].exists()]
    if not {"-n", "--dry-run", "--dryrun"} & set(sys.argv):
        for line in clear_the_way(PATHS, outputs):
            logger.warning(line)
    lacking = not_current(PATHS, outputs)
    for output in outputs:
        if output.name in lacking:
            FORCED.update(str(file) for file in output.files if file.exists())
    changed = {n: each for n, each in lacking.items() if each.kind == "changed"}
    for line in explain(changed):
        logger.warning(f"{line}; it is made again")


# A partial drawing depends on the state of cells: with them as inputs, Snakemake would have to make them.
def inputs_of(target):
    return [] if PARTIAL else OUTPUTS.drawn_from(target)


def state_of(target):
    return PARTIAL and state_fingerprint(OUTPUTS.drawn_from(target))
