def inputs(output):
    """Return the inputs of an output, and make it again if it was made for other settings.

    The output's own note tells, because Snakemake's records are those of one working folder.
    """
    if output.outdated():
        workflow.dag.forcefiles.update(map(str, output.files))
    return output.inputs


def permitted(problem, output):
    """Return an output of a sweep; refuse it as its job would refuse private data, so that a dry run tells."""
    if problem in REFUSED and not all(file.exists() for file in output.files):
        refuse_unaccounted(STUDY, problem)
    return output
