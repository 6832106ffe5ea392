# The privacy audit: one training run with canaries per setting. `snakemake audit` passes if no
# setting leaks more than it claims; the evidence is written in any case.
if STUDY.audit is not None:
    AUDITED = STUDY.sweeps[STUDY.audit.sweep].problem.name

    rule audit_setting:
        input:
            lambda w: inputs(permitted(AUDITED, OUTPUTS.audited(Cell.parse(AUDITED, w.cell)))),
        output:
            R / "audit/{cell}.json",
        log:
            R / "logs/audit/{cell}.log",
        threads: JOBS.threads("audit")
        resources:
            **JOBS.on_gpu("audit", problem=AUDITED, epochs=STUDY.audit.epochs),
        params:
            settings=fingerprints.audit_fingerprint(STUDY),
        shell:
            "dpsweep audit-setting {wildcards.cell} --planned {params.settings} > {log:q} 2>&1"

    rule audit_evidence:
        input:
            lambda w: inputs(OUTPUTS.audit()),
        output:
            expand(R / "audit/audit.{suffix}", suffix=["csv", "pdf", "png", "tex", "md"]),
        log:
            R / "logs/audit/evidence.log",
        localrule: True
        params:
            settings=lambda w, output: fingerprints.report_fingerprint(STUDY),
        shell:
            "dpsweep audit-evidence --planned {params.settings} > {log:q} 2>&1"

    rule audit:
        input:
            R / "audit/audit.csv",
        log:
            R / "logs/audit/verdict.log",
        localrule: True
        shell:
            "dpsweep audit 2>&1 | tee {log:q}"
