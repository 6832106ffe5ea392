# A model that may be released: `snakemake release`. Its secret randomness cannot be repeated, so an existing model is
# only verified. The model is not an output of the rule, because Snakemake deletes outputs of failed jobs.
if STUDY.release is not None:
    RELEASED = STUDY.sweeps[STUDY.release.sweep].problem.name
    EXISTS = (R / "release/certificate.json").exists()

    # `test -e`: the job of a killed call may have made the model in the meantime.
    rule release:
        input:
            [] if EXISTS else OUTPUTS.trained_on(RELEASED),
        log:
            train=R / "logs/release/train.log",
            verify=R / "logs/release/verify.log",
        localrule: EXISTS
        threads: JOBS.threads("release")
        resources:
            **JOBS.on_gpu("release", problem=RELEASED, epochs=max(STUDY.release.epochs)),
        params:
            folder=R / "release",
        shell:
            "test -e {params.folder:q}/certificate.json || dpsweep release > {log.train:q} 2>&1; "
            'dpsweep verify {params.folder:q} --study "$DPSWEEP_STUDY" 2>&1 | tee {log.verify:q}'
