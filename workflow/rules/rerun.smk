# Snakemake decides by times of writing and by its own records, which may be lost. dpsweep knows what
# every output was made from: what is there, but not as the study asks for it, is made again.
from dpsweep.planning.outputs import Outputs
from dpsweep.planning.provenance import explain, problems


def make_again(workflow, study, paths):
    outputs = list(Outputs(study, paths).every())
    found = problems(paths, outputs)
    again = {
        str(file)
        for output in outputs
        if output.name in found and any(file.exists() for file in output.files)
        for file in output.files
    }
    workflow.dag_settings.forcerun = again.union(workflow.dag_settings.forcerun)
    changed = {
        name: problem for name, problem in found.items() if problem.kind == "changed"
    }
    for line in explain(changed):
        logger.warning(f"{line}; it is made again")
