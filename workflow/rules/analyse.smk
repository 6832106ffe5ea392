# Tables of all trials, figures, tables, and two HTML files: one to explore all cells with, and the report, with
# every figure and table. What is drawn depends on exactly the cells that it shows. It is drawn again if a cell is
# newer, or if its section of the study or the sources that draw it have changed (`made_for`).


localrules:
    aggregate,
    figure,
    table,
    table_with_comparisons,
    explore,
    report,
    plan,


# All trials of a problem in one table.
rule aggregate:
    input:
        lambda w: OUTPUTS.problem(w.problem).inputs,
    output:
        R / "problems/{problem}.parquet",
    log:
        R / "logs/problems/{problem}.log",
    shell:
        "dpsweep aggregate {wildcards.problem} > {log:q} 2>&1"


rule figure:
    input:
        lambda w: OUTPUTS.figure(w.target).inputs,
    output:
        expand(R / "figures/{{target}}.{suffix}", suffix=["pdf", "png", "csv"]),
    log:
        R / "logs/figures/{target}.log",
    wildcard_constraints:
        target="|".join(map(re.escape, STUDY.figures)) or "(?!)",
    params:
        made_for=lambda w: fingerprints.target_fingerprint(STUDY, STUDY.figures[w.target]),
    shell:
        "dpsweep figure {wildcards.target} > {log:q} 2>&1"


rule table:
    input:
        lambda w: OUTPUTS.table(w.target).inputs,
    output:
        expand(R / "tables/{{target}}.{suffix}", suffix=["tex", "md", "csv"]),
    log:
        R / "logs/tables/{target}.log",
    wildcard_constraints:
        target=OUTPUTS.tables_with("csv"),
    params:
        made_for=lambda w: fingerprints.target_fingerprint(STUDY, STUDY.tables[w.target]),
    shell:
        "dpsweep table {wildcards.target} > {log:q} 2>&1"


# Behind the verdicts on tuning rules stand comparisons, in a file of their own.
use rule table as table_with_comparisons with:
    output:
        expand(
            R / "tables/{{target}}.{suffix}",
            suffix=["tex", "md", "csv", "comparisons.csv"],
        ),
    wildcard_constraints:
        target=OUTPUTS.tables_with("comparisons.csv"),


rule explore:
    input:
        OUTPUTS.explore().inputs,
    output:
        R / "explore.html",
    log:
        R / "logs/explore.log",
    params:
        made_for=fingerprints.report_fingerprint(STUDY),
    shell:
        "dpsweep explore > {log:q} 2>&1"


rule report:
    input:
        OUTPUTS.report().inputs,
    output:
        R / "report.html",
    log:
        R / "logs/report.log",
    params:
        made_for=fingerprints.report_fingerprint(STUDY),
    shell:
        "dpsweep report > {log:q} 2>&1"


# What is missing and what it will cost. `--config targets="..."` names figures, tables, problems, sweeps, cells or
# files; without it, everything is planned.
rule plan:
    log:
        R / "logs/plan.log",
    resources:
        # Of the cluster's GPUs: a profile says it. 0: the estimate is for this machine.
        teraflops=0,
    params:
        targets=config.get("targets", "").split(),
    shell:
        "dpsweep plan --teraflops {resources.teraflops} {params.targets:q} > {log:q} 2>&1 || status=$?; "
        "cat {log:q}; exit ${{status:-0}}"
