# One job a cell. A rule for every (problem, epochs): inputs are static, so that the DAG of the full
# study stays cheap, and cells cost the same, so that a cluster packs a fixed number into a job.

for name, epochs in STUDY.kinds():
    problem = STUDY.problems[name]
    cell = CELL.replace("{epochs}", str(epochs))

    rule:
        name:
            f"train_{name}_epochs{epochs}"
        input:
            OUTPUTS.trained_on(name),
            noise=PATHS.noise(problem.dataset, "{epsilon}", epochs, "{batch_size}"),
            again=again(f"cells/{name}/{cell}"),
        output:
            trials=PATHS.results / "cells" / name / cell / "trials.parquet",
            steps=PATHS.results / "cells" / name / cell / "steps.parquet",
        log:
            LOGS / "cells" / name / f"{cell}.log",
        wildcard_constraints:
            batch_size=r"\d+|full",
        threads: STUDY.training.threads
        resources:
            **JOBS.training(name, epochs),
        params:
            problem=name,
            epochs=epochs,
            study=study_file,
        shell:
            "dpsweep train --study {params.study:q} {params.problem} eps{wildcards.epsilon}"
            "_epochs{params.epochs}_B{wildcards.batch_size}_C{wildcards.clipping_bound}"
            " > {log:q} 2>&1"
