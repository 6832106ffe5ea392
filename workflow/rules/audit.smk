# The privacy audit: one training run with canaries per setting. `snakemake audit` passes if no
# setting gives away more than it claims; the evidence is written either way.

if STUDY.audit is not None:
    AUDITED = STUDY.sweeps[STUDY.audit.sweep].problem
    EVIDENCE = OUTPUTS.audit()

    localrules:
        audit,

    rule audit_setting:
        input:
            OUTPUTS.trained_on(AUDITED.name),
            again=again(f"audit/{CELL}"),
        output:
            PATHS.audited(CELL),
        log:
            LOGS / "audit" / f"{CELL}.log",
        wildcard_constraints:
            epochs=r"\d+",
            batch_size=r"\d+|full",
        threads: STUDY.training.threads
        resources:
            **JOBS.training(AUDITED.name, STUDY.audit.epochs),
        params:
            study=study_file,
        shell:
            "dpsweep audit-setting --study {params.study:q} eps{wildcards.epsilon}"
            "_epochs{wildcards.epochs}_B{wildcards.batch_size}_C{wildcards.clipping_bound}"
            " > {log:q} 2>&1"

    rule audit_evidence:
        input:
            EVIDENCE.inputs,
            again=again(EVIDENCE.name),
        output:
            EVIDENCE.files,
        log:
            LOGS / "audit" / "evidence.log",
        resources:
            **JOBS.analysis(),
        params:
            study=study_file,
        shell:
            "dpsweep audit-evidence --study {params.study:q} > {log:q} 2>&1"

    rule audit:
        input:
            PATHS.audit("csv"),
        log:
            LOGS / "audit" / "verdict.log",
        params:
            study=study_file,
        shell:
            "dpsweep audit --study {params.study:q} > {log:q} 2>&1 || status=$?; "
            "cat {log:q}; exit ${{status:-0}}"
