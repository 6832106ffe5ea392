# Figures and tables. Each depends on exactly the cells that it draws. A partial one depends on the
# state of these: with them as inputs, Snakemake would have to make them.


rule figure:
    input:
        lambda wildcards: (
            [] if PARTIAL else OUTPUTS.drawn_from(STUDY.figures[wildcards.target])
        ),
        again=again("figures/{target}"),
    output:
        [PATHS.figure("{target}", suffix) for suffix in ("pdf", "png", "csv")],
    log:
        LOGS / "figures" / "{target}.log",
    wildcard_constraints:
        target="|".join(map(re.escape, STUDY.figures)) or "(?!)",
    resources:
        **JOBS.analysis(),
    params:
        state=lambda wildcards: PARTIAL
        and state_fingerprint(OUTPUTS.drawn_from(STUDY.figures[wildcards.target])),
        partial="--partial" if PARTIAL else "",
        study=study_file,
    shell:
        "dpsweep figure --study {params.study:q} {params.partial} {wildcards.target} > {log:q} 2>&1"


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


rule table:
    input:
        lambda wildcards: (
            [] if PARTIAL else OUTPUTS.drawn_from(STUDY.tables[wildcards.target])
        ),
        again=again("tables/{target}"),
    output:
        [PATHS.table("{target}", suffix) for suffix in TABLE_FILES],
    log:
        LOGS / "tables" / "{target}.log",
    wildcard_constraints:
        target=TABLES_WITH[TABLE_FILES],
    resources:
        **JOBS.analysis(),
    params:
        state=lambda wildcards: PARTIAL
        and state_fingerprint(OUTPUTS.drawn_from(STUDY.tables[wildcards.target])),
        partial="--partial" if PARTIAL else "",
        study=study_file,
    shell:
        "dpsweep table --study {params.study:q} {params.partial} {wildcards.target} > {log:q} 2>&1"


use rule table as table_with_comparisons with:
    output:
        [PATHS.table("{target}", suffix) for suffix in WITH_COMPARISONS],
    wildcard_constraints:
        target=TABLES_WITH[WITH_COMPARISONS],
