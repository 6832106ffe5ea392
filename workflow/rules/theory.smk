# How the per-example gradients of a cell's best trial overlap, for the figures of the theory.
# Not private: it looks at raw gradients of the training data.

for name, epochs in STUDY.kinds():
    cell = CELL.replace("{epochs}", str(epochs))

    rule:
        name:
            f"theory_{name}_epochs{epochs}"
        input:
            PATHS.results / "cells" / name / cell / "trials.parquet",
            again=again(f"theory/{name}/{cell}"),
        output:
            PATHS.results / "theory" / name / f"{cell}.parquet",
        log:
            LOGS / "theory" / name / f"{cell}.log",
        wildcard_constraints:
            batch_size=r"\d+|full",
        threads: STUDY.training.threads
        resources:
            **JOBS.theory(name, epochs),
        params:
            problem=name,
            epochs=epochs,
            study=study_file,
        shell:
            "dpsweep theory --study {params.study:q} {params.problem} eps{wildcards.epsilon}"
            "_epochs{params.epochs}_B{wildcards.batch_size}_C{wildcards.clipping_bound}"
            " > {log:q} 2>&1"
