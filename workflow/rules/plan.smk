# What is missing and what it will cost. `--config targets="..."` names figures, tables, problems,
# sweeps, cells or files; without it, everything is planned.


localrules:
    plan,


rule plan:
    log:
        LOGS / "plan.log",
    params:
        # Wherever the site's settings come from, these are the ones in use.
        site=json.dumps({"slurm": config.get("slurm")}),
        for_site=["--site", "-"] if SITE else [],
        targets=config.get("targets", "").split(),
        study=STUDY_FILE,
    shell:
        "echo {params.site:q} | dpsweep plan --study {params.study:q} {params.for_site} "
        "{params.targets:q} > {log:q} 2>&1 || status=$?; "
        "cat {log:q}; exit ${{status:-0}}"
