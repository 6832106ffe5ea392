def inputs(output):
    """Return the inputs of an output, and make it again if it was made for other settings.

    The output's own note tells, because Snakemake's records are those of one working folder.
    """
    if output.outdated():
        workflow.dag.forcefiles.update(map(str, output.files))
    return output.inputs
