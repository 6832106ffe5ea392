# A model that may be released: `snakemake release`. It is trained with secret randomness and cannot be made again:
# where it exists, it is verified. It is no output of the rule, since Snakemake deletes outputs of jobs that fail.
if STUDY.release is not None:
    RELEASED = STUDY.sweeps[STUDY.release.sweep].problem.name
    EXISTS = (R / "release/certificate.json").exists()

    # `test -e`: the job of a call that was killed may have made the model meanwhile.
    rule release:
        input:
            [] if EXISTS else OUTPUTS.trained_on(RELEASED),
        log:
            train=R / "logs/release/train.log",
            verify=R / "logs/release/verify.log",
        localrule: EXISTS
        threads: STUDY.training.threads
        resources:
            **JOBS.on_gpu("release", problem=RELEASED, epochs=max(STUDY.release.epochs)),
        params:
            folder=R / "release",
        shell:
            "test -e {params.folder:q}/certificate.json || dpsweep release > {log.train:q} 2>&1; "
            'dpsweep verify {params.folder:q} --study "$DPSWEEP_STUDY" 2>&1 | tee {log.verify:q}'
