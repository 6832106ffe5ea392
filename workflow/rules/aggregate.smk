# All trials of a problem in one table.

for name in STUDY.problems:
    table = OUTPUTS.problem(name)

    rule:
        name:
            f"aggregate_{name}"
        input:
            table.inputs,
            again=again(table.name),
        output:
            table.files,
        log:
            LOGS / "problems" / f"{name}.log",
        resources:
            **JOBS.analysis(),
        params:
            problem=name,
            study=study_file,
        shell:
            "dpsweep aggregate --study {params.study:q} {params.problem} > {log:q} 2>&1"
