# What is missing and what it will cost. `--config targets="..."` names figures, tables, problems,
# sweeps, cells or files; without it, everything is planned.


localrules:
    plan,


rule plan:
    log:
        LOGS / "plan.log",
    resources:
        # Of the cluster's GPUs: a profile says it. 0: the estimate is for this machine.
        teraflops=0,
    params:
        targets=config.get("targets", "").split(),
        study=STUDY_FILE,
    shell:
        "dpsweep plan --study {params.study:q} --teraflops {resources.teraflops} "
        "{params.targets:q} > {log:q} 2>&1 || status=$?; "
        "cat {log:q}; exit ${{status:-0}}"
