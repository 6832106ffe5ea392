# Cells, and what is measured on their best trials. There is a rule of each kind for every (problem, epochs):
# inputs are static, so that the DAG of the full study stays cheap.

# The cells that compete for gradient norms of an (epsilon, epochs, C), by file: all batch sizes, and the
# choice is made inside the job.
NORMS = {
    str(norms.files[0]): norms.inputs
    for norms in map(OUTPUTS.gradient_norms, NormsKey.of(STUDY.all_cells()))
}

RESULTS = str(PATHS.results)

for problem, epochs in STUDY.kinds():
    cell = (
        f"{problem}/eps{{epsilon}}_epochs{epochs}_B{{batch_size}}_C{{clipping_bound}}"
    )
    norms = f"{problem}/eps{{epsilon}}_epochs{epochs}_C{{clipping_bound}}-{{made_for}}"

    rule:
        name:
            f"train_{problem}_epochs{epochs}"
        input:
            lambda wildcards, name=cell: OUTPUTS.cell(
                Cell.parse(*name.format(**wildcards).split("/"))
            ).inputs,
        output:
            f"{RESULTS}/cells/{cell}/trials-{{made_for}}.parquet",
            f"{RESULTS}/cells/{cell}/steps-{{made_for}}.parquet",
        log:
            f"{RESULTS}/logs/cells/{cell}-{{made_for}}.log",
        threads: STUDY.training.threads
        resources:
            gpu=1,
            mem_mb=JOBS.mem_mb(problem=problem, epochs=epochs),
            runtime=JOBS.runtime("train", problem=problem, epochs=epochs),
        params:
            problem=problem,
            epochs=epochs,
            study=STUDY_FILE,
        shell:
            "dpsweep train --study {params.study:q} {params.problem} eps{wildcards.epsilon}"
            "_epochs{params.epochs}_B{wildcards.batch_size}_C{wildcards.clipping_bound}"
            " > {log:q} 2>&1"

    # Per-example gradient norms.
    rule:
        name:
            f"gradient_norms_{problem}_epochs{epochs}"
        input:
            lambda wildcards, name=norms: NORMS.get(
                f"{RESULTS}/gradnorms/{name.format(**wildcards)}.parquet", []
            ),
        output:
            f"{RESULTS}/gradnorms/{norms}.parquet",
        log:
            f"{RESULTS}/logs/gradnorms/{norms}.log",
        threads: STUDY.training.threads
        resources:
            gpu=1,
            mem_mb=JOBS.mem_mb(problem=problem, epochs=epochs),
            runtime=JOBS.runtime("gradient_norms", problem=problem, epochs=epochs),
        params:
            problem=problem,
            epochs=epochs,
            study=STUDY_FILE,
        shell:
            "dpsweep gradient-norms --study {params.study:q} {params.problem} {wildcards.epsilon} "
            "{params.epochs} {wildcards.clipping_bound} > {log:q} 2>&1"

    # How the per-example gradients of a cell's best trials overlap, for the figures of the theory.
    # Not private: it looks at raw gradients of the training data.
    rule:
        name:
            f"theory_{problem}_epochs{epochs}"
        input:
            lambda wildcards, name=cell: OUTPUTS.theory(
                Cell.parse(*name.format(**wildcards).split("/"))
            ).inputs,
        output:
            f"{RESULTS}/theory/{cell}-{{made_for}}.parquet",
        log:
            f"{RESULTS}/logs/theory/{cell}-{{made_for}}.log",
        threads: STUDY.training.threads
        resources:
            gpu=1,
            mem_mb=JOBS.mem_mb(problem=problem, epochs=epochs),
            runtime=JOBS.runtime("theory", problem=problem, epochs=epochs),
        params:
            problem=problem,
            epochs=epochs,
            study=STUDY_FILE,
        shell:
            "dpsweep theory --study {params.study:q} {params.problem} eps{wildcards.epsilon}"
            "_epochs{params.epochs}_B{wildcards.batch_size}_C{wildcards.clipping_bound}"
            " > {log:q} 2>&1"


# All trials of a problem in one table.
for problem in STUDY.problems:
    table = OUTPUTS.problem(problem)

    rule:
        name:
            f"aggregate_{problem}"
        input:
            table.inputs,
        output:
            table.files,
        log:
            LOGS / f"{table.name}.log",
        localrule: True
        params:
            problem=problem,
            study=STUDY_FILE,
        shell:
            "dpsweep aggregate --study {params.study:q} {params.problem} > {log:q} 2>&1"
