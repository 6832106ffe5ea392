# All trials of a sweep in one table.

for name in STUDY.sweeps:

    rule:
        name:
            f"aggregate_{name}"
        input:
            [PATHS.cell(cell) / "trials.parquet" for cell in STUDY.sweep_cells(name)],
            again=again(f"sweeps/{name}"),
        output:
            PATHS.sweep(name),
        log:
            LOGS / "sweeps" / f"{name}.log",
        resources:
            **JOBS.analysis(),
        params:
            sweep=name,
            study=study_file,
        shell:
            "dpsweep aggregate --study {params.study:q} {params.sweep} > {log:q} 2>&1"
