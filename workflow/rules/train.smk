# Cells, and what is measured on their best trials. There is a rule of each kind for every (problem, epochs):
# inputs are static, so that the DAG of the full study stays cheap.

# The cells that compete for gradient norms of an (epsilon, epochs, C), by file: all batch sizes, and the
# choice is made inside the job.
NORMS = {
    str(norms.files[0]): norms.inputs
    for norms in map(OUTPUTS.gradient_norms, NormsKey.of(STUDY.all_cells()))
}

for problem, epochs in STUDY.kinds():
    cell = Cell(problem, "{epsilon}", epochs, "{batch_size}", "{clipping_bound}")
    trained, overlap = OUTPUTS.cell(cell), OUTPUTS.theory(cell)
    norms = PATHS.gradient_norms(problem, "{epsilon}", epochs, "{clipping_bound}")

    rule:
        name:
            f"train_{problem}_epochs{epochs}"
        input:
            trained.inputs,
        output:
            trained.files,
        log:
            LOGS / f"{trained.name}.log",
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
            lambda wildcards, file=str(norms): NORMS.get(file.format(**wildcards), []),
        output:
            norms,
        log:
            LOGS / "gradnorms" / problem / f"{norms.stem}.log",
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
            overlap.inputs,
        output:
            overlap.files,
        log:
            LOGS / f"{overlap.name}.log",
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
