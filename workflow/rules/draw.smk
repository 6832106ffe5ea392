# Figures, tables, and two HTML files: one to explore all cells with, and the report, with every figure and
# table. Each depends on exactly the cells that it draws.


CELLS_STATE = PARTIAL and state_fingerprint(
    PATHS.cell_trials(STUDY, cell) for cell in STUDY.all_cells()
)
ONLY_PARTIAL = "--partial" if PARTIAL else ""
TABLE_FILES = ("tex", "md", "csv")
# Behind the verdicts on tuning rules stand comparisons, in a file of their own.
WITH_COMPARISONS = (*TABLE_FILES, "comparisons.csv")


# The names of the tables that have these files, as a wildcard constraint.
TABLES_WITH = {
    files: "|".join(
        re.escape(name)
        for name, table in STUDY.tables.items()
        if table.table_files == files
    )
    or "(?!)"
    for files in (TABLE_FILES, WITH_COMPARISONS)
}


localrules:
    figure,
    table,
    table_with_comparisons,
    explore,
    report,


rule figure:
    input:
        lambda wildcards: inputs_of(STUDY.figures[wildcards.target]),
    output:
        [PATHS.figure("{target}", suffix) for suffix in ("pdf", "png", "csv")],
    log:
        LOGS / "figures" / "{target}.log",
    wildcard_constraints:
        target="|".join(map(re.escape, STUDY.figures)) or "(?!)",
    params:
        state=lambda wildcards: state_of(STUDY.figures[wildcards.target]),
        partial=ONLY_PARTIAL,
        study=STUDY_FILE,
    shell:
        "dpsweep figure --study {params.study:q} {params.partial} {wildcards.target} > {log:q} 2>&1"


rule table:
    input:
        lambda wildcards: inputs_of(STUDY.tables[wildcards.target]),
    output:
        [PATHS.table("{target}", suffix) for suffix in TABLE_FILES],
    log:
        LOGS / "tables" / "{target}.log",
    wildcard_constraints:
        target=TABLES_WITH[TABLE_FILES],
    params:
        state=lambda wildcards: state_of(STUDY.tables[wildcards.target]),
        partial=ONLY_PARTIAL,
        study=STUDY_FILE,
    shell:
        "dpsweep table --study {params.study:q} {params.partial} {wildcards.target} > {log:q} 2>&1"


use rule table as table_with_comparisons with:
    output:
        [PATHS.table("{target}", suffix) for suffix in WITH_COMPARISONS],
    wildcard_constraints:
        target=TABLES_WITH[WITH_COMPARISONS],


rule explore:
    input:
        [] if PARTIAL else OUTPUTS.explore().inputs,
    output:
        PATHS.explore,
    log:
        LOGS / "explore.log",
    params:
        partial=ONLY_PARTIAL,
        state=CELLS_STATE,
        study=STUDY_FILE,
    shell:
        "dpsweep explore --study {params.study:q} {params.partial} > {log:q} 2>&1"


rule report:
    input:
        [
            file
            for file in OUTPUTS.report().inputs
            if not PARTIAL or file.is_relative_to(PATHS.drawn)
        ],
    output:
        PATHS.report,
    log:
        LOGS / "report.log",
    params:
        partial=ONLY_PARTIAL,
        state=CELLS_STATE,
        study=STUDY_FILE,
    shell:
        "dpsweep report --study {params.study:q} {params.partial} > {log:q} 2>&1"
