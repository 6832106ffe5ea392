# Two HTML files: one to explore all cells with, and one with every figure and table.


rule explore:
    input:
        [] if PARTIAL else OUTPUTS.explore().inputs,
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
        [
            file
            for file in OUTPUTS.report().inputs
            if not PARTIAL or file.is_relative_to(PATHS.drawn)
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
