# Per-example gradient norms of the best (batch size, learning rate) of an (epsilon, epochs, C).
# All batch sizes compete, and the choice is made inside the job.

for name, sweep, epochs in [
    (name, sweep, epochs)
    for name, sweep in STUDY.sweeps.items()
    for epochs in sweep.epochs
]:

    rule:
        name:
            f"gradient_norms_{name}_epochs{epochs}"
        input:
            [
                PATHS.results
                / "cells"
                / name
                / CELL.replace("{epochs}", str(epochs)).replace(
                    "{batch_size}", str(batch_size)
                )
                / "trials.parquet"
                for batch_size in sweep.batch_size
            ],
            again=again(
                f"gradnorms/{name}/eps{{epsilon}}_epochs{epochs}_C{{clipping_bound}}"
            ),
        output:
            PATHS.gradient_norms(name, "{epsilon}", epochs, "{clipping_bound}"),
        log:
            LOGS
            / "gradnorms"
            / name
            / f"eps{{epsilon}}_epochs{epochs}_C{{clipping_bound}}.log",
        group:
            JOBS.group("gradient_norms", name, epochs)
        threads: STUDY.training.threads
        resources:
            **JOBS.gradient_norms(name, epochs),
        params:
            sweep=name,
            epochs=epochs,
            study=study_file,
        shell:
            "dpsweep gradient-norms --study {params.study:q} {params.sweep} {wildcards.epsilon} "
            "{params.epochs} {wildcards.clipping_bound} > {log:q} 2>&1"
