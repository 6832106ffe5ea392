# All trials of a problem in one table.
rule aggregate:
    input:
        lambda w: inputs(OUTPUTS.problem(w.problem)),
    output:
        R / "problems/{problem}.parquet",
    log:
        R / "logs/problems/{problem}.log",
    localrule: True
    params:
        settings=lambda w, output: fingerprints.problem_fingerprint(STUDY, w.problem),
    shell:
        "dpsweep aggregate {wildcards.problem} --planned {params.settings} > {log:q} 2>&1"


# A figure or table depends on exactly the cells that it shows. It is made again if one of them is newer, or if its
# section of the study or its source code has changed (`inputs`). Snakemake does not record parameters that are
# functions of `output`, so a figure that another clone has drawn is not drawn again.
rule figure:
    input:
        lambda w: inputs(OUTPUTS.figure(w.figure)),
    output:
        expand(R / "figures/{{figure}}.{suffix}", suffix=["pdf", "png", "csv"]),
    log:
        R / "logs/figures/{figure}.log",
    localrule: True
    params:
        settings=lambda w, output: fingerprints.target_fingerprint(STUDY, STUDY.figures[w.figure]),
    shell:
        "dpsweep figure {wildcards.figure} --planned {params.settings} > {log:q} 2>&1"


rule table:
    input:
        lambda w: inputs(OUTPUTS.table(w.table)),
    output:
        expand(R / "tables/{{table}}.{suffix}", suffix=["tex", "md", "csv"]),
    log:
        R / "logs/tables/{table}.log",
    localrule: True
    params:
        settings=lambda w, output: fingerprints.target_fingerprint(STUDY, STUDY.tables[w.table]),
    shell:
        "dpsweep table {wildcards.table} --planned {params.settings} > {log:q} 2>&1"


# The table of tuning rules also has a file with the comparisons behind its verdicts.
use rule table as table_with_comparisons with:
    output:
        expand(R / "tables/{{table}}.{suffix}", suffix=["tex", "md", "csv", "comparisons.csv"]),
    wildcard_constraints:
        table=OUTPUTS.tables_with("comparisons.csv"),


rule explore:
    input:
        lambda w: inputs(OUTPUTS.explore()),
    output:
        R / "explore.html",
    log:
        R / "logs/explore.log",
    localrule: True
    params:
        settings=lambda w, output: fingerprints.report_fingerprint(STUDY),
    shell:
        "dpsweep explore --planned {params.settings} > {log:q} 2>&1"


rule report:
    input:
        lambda w: inputs(OUTPUTS.report()),
    output:
        R / "report.html",
    log:
        R / "logs/report.log",
    localrule: True
    params:
        settings=lambda w, output: fingerprints.report_fingerprint(STUDY),
    shell:
        "dpsweep report --planned {params.settings} > {log:q} 2>&1"


# List missing outputs and their cost. `--config targets="..."` selects figures, tables, problems, sweeps, cells or
# files; without it, everything is planned. A profile sets the speed of its GPUs; 0 means the speed of this machine.
rule plan:
    log:
        R / "logs/plan.log",
    localrule: True
    params:
        targets=config.get("targets", "").split(),
        teraflops=JOBS.plan_teraflops(workflow.resource_settings.overwrite_resources),
    shell:
        "dpsweep plan --teraflops={params.teraflops:q} {params.targets:q} 2>&1 | tee {log:q}"
