# All trials of a problem in one table.

for name in STUDY.problems:

    rule:
        name:
            f"aggregate_{name}"
        input:
            [PATHS.cell_trials(cell) for cell in STUDY.problem_cells(name)],
            again=again(f"problems/{name}"),
        output:
            PATHS.problem(name),
        log:
            LOGS / "problems" / f"{name}.log",
        resources:
            **JOBS.analysis(),
        params:
            problem=name,
            study=study_file,
        shell:
            "dpsweep aggregate --study {params.study:q} {params.problem} > {log:q} 2>&1"
