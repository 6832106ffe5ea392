# Per-example gradient norms of the best (batch size, learning rate) of an (epsilon, epochs, C).
# All batch sizes compete, and the choice is made inside the job.

# The cells that compete, by the file of their gradient norms.
NORMS = {
    str(norms.files[0]): norms.inputs
    for norms in map(
        OUTPUTS.gradient_norms, dict.fromkeys(map(NormsKey.of, STUDY.all_cells()))
    )
}

for name, epochs in STUDY.kinds():
    norms = PATHS.gradient_norms(name, "{epsilon}", epochs, "{clipping_bound}")

    rule:
        name:
            f"gradient_norms_{name}_epochs{epochs}"
        input:
            lambda wildcards, file=str(norms): NORMS.get(file.format(**wildcards), []),
            again=again(
                f"gradnorms/{name}/eps{{epsilon}}_epochs{epochs}_C{{clipping_bound}}"
            ),
        output:
            norms,
        log:
            LOGS
            / "gradnorms"
            / name
            / f"eps{{epsilon}}_epochs{epochs}_C{{clipping_bound}}.log",
        threads: STUDY.training.threads
        resources:
            **JOBS.gradient_norms(name, epochs),
        params:
            problem=name,
            epochs=epochs,
            study=study_file,
        shell:
            "dpsweep gradient-norms --study {params.study:q} {params.problem} {wildcards.epsilon} "
            "{params.epochs} {wildcards.clipping_bound} > {log:q} 2>&1"
