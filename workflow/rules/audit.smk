# The privacy audit: one training run with canaries per setting. `snakemake audit` passes if no
# setting gives away more than it claims; the evidence is written either way.

if STUDY.audit is not None:
    AUDITED = STUDY.sweeps[STUDY.audit.sweep].problem.name
    SETTING = OUTPUTS.audited(
        Cell(AUDITED, "{epsilon}", "{epochs}", "{batch_size}", "{clipping_bound}")
    )
    EVIDENCE = OUTPUTS.audit()

    localrules:
        audit,
        audit_evidence,

    rule audit_setting:
        input:
            SETTING.inputs,
        output:
            SETTING.files,
        log:
            LOGS / f"{SETTING.name}.log",
        threads: STUDY.training.threads
        resources:
            gpu=1,
            mem_mb=JOBS.mem_mb(problem=AUDITED, epochs=STUDY.audit.epochs),
            runtime=JOBS.runtime("train", problem=AUDITED, epochs=STUDY.audit.epochs),
        params:
            study=STUDY_FILE,
        shell:
            "dpsweep audit-setting --study {params.study:q} eps{wildcards.epsilon}"
            "_epochs{wildcards.epochs}_B{wildcards.batch_size}_C{wildcards.clipping_bound}"
            " > {log:q} 2>&1"

    rule audit_evidence:
        input:
            EVIDENCE.inputs,
        output:
            EVIDENCE.files,
        log:
            LOGS / "audit" / "evidence.log",
        params:
            study=STUDY_FILE,
        shell:
            "dpsweep audit-evidence --study {params.study:q} > {log:q} 2>&1"

    rule audit:
        input:
            PATHS.audit("csv"),
        log:
            LOGS / "audit" / "verdict.log",
        params:
            study=STUDY_FILE,
        shell:
            "dpsweep audit --study {params.study:q} > {log:q} 2>&1 || status=$?; "
            "cat {log:q}; exit ${{status:-0}}"
