# Two HTML files: one to explore all cells with, and one with every figure and table.


rule explore:
    input:
        [PATHS.problem(name) for name in STUDY.problems if not PARTIAL],
        again=again("explore"),
    output:
        PATHS.explore,
    log:
        LOGS / "explore.log",
    resources:
        **JOBS.analysis(),
    params:
        partial="--partial" if PARTIAL else "",
        state=PARTIAL
        and state_fingerprint(PATHS.cell_trials(cell) for cell in STUDY.all_cells()),
        study=study_file,
    shell:
        "dpsweep explore --study {params.study:q} {params.partial} > {log:q} 2>&1"


rule report:
    input:
        PATHS.explore,
        [
            PATHS.figure(target, suffix)
            for target in STUDY.figures
            for suffix in ("png", "csv")
        ],
        [
            PATHS.table(target, suffix)
            for target, table in STUDY.tables.items()
            for suffix in table.table_files
            if suffix.endswith("csv")
        ],
        [PATHS.problem(name) for name in STUDY.problems if not PARTIAL],
        [
            PATHS.audit(suffix)
            for suffix in ("png", "csv")
            if STUDY.audit and not PARTIAL
        ],
        again=again("report"),
    output:
        PATHS.report,
    log:
        LOGS / "report.log",
    resources:
        **JOBS.analysis(),
    params:
        partial="--partial" if PARTIAL else "",
        state=PARTIAL
        and state_fingerprint(PATHS.cell_trials(cell) for cell in STUDY.all_cells()),
        study=study_file,
    shell:
        "dpsweep report --study {params.study:q} {params.partial} > {log:q} 2>&1"
