# A model that may be released: `snakemake release`. It is trained with secret randomness and cannot be
# made again, so where it exists no rule makes it, whatever has changed.

if STUDY.release is not None:
    CERTIFICATE = PATHS.release / "certificate.json"
    RELEASED = STUDY.sweeps[STUDY.release.sweep].problem.name
    RELEASE_JOB = JOBS.training(RELEASED, STUDY.release.epochs[-1])
    if "pack_minutes" in RELEASE_JOB:
        # A limit that only many trials reach would tell how many there were not.
        RELEASE_JOB["runtime"] = RELEASE_JOB["pack_minutes"]

    localrules:
        release,

    if not CERTIFICATE.exists():

        rule train_release:
            input:
                training_inputs(STUDY, PATHS, RELEASED),
            output:
                CERTIFICATE,
            log:
                LOGS / "release" / "train.log",
            threads: STUDY.training.threads
            resources:
                **RELEASE_JOB,
            params:
                study=study_file,
            shell:
                "dpsweep release --study {params.study:q} > {log:q} 2>&1"

    rule release:
        input:
            CERTIFICATE,
        log:
            LOGS / "release" / "verify.log",
        params:
            folder=PATHS.release,
        shell:
            "dpsweep verify {params.folder:q} > {log:q} 2>&1 || status=$?; "
            "cat {log:q}; exit ${{status:-0}}"
