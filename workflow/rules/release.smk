# A model that may be released: `snakemake release`. It is trained with secret randomness and cannot be
# made again, so where it exists no job makes it, whatever has changed. Nor is it an output: Snakemake
# deletes the outputs of jobs that start or fail. Its job leaves an empty file instead.

if STUDY.release is not None:
    CERTIFICATE = PATHS.release / "certificate.json"
    RELEASED = LOGS / "release" / "trained"
    RELEASED_PROBLEM = STUDY.sweeps[STUDY.release.sweep].problem.name
    RELEASE_JOB = JOBS.training(RELEASED_PROBLEM, STUDY.release.epochs[-1])
    if "pack_minutes" in RELEASE_JOB:
        # A limit that only many trials reach would tell how many there were not.
        RELEASE_JOB["runtime"] = RELEASE_JOB["pack_minutes"]
    if not CERTIFICATE.exists():
        RELEASED.unlink(missing_ok=True)  # of a model that was moved away

    localrules:
        release,

    # A job of an earlier call that was killed may end before this one starts.
    rule train_release:
        input:
            training_inputs(STUDY, PATHS, RELEASED_PROBLEM),
        output:
            touch(RELEASED),
        log:
            LOGS / "release" / "train.log",
        threads: STUDY.training.threads
        resources:
            **RELEASE_JOB,
        params:
            certificate=CERTIFICATE,
            study=study_file,
        shell:
            "test -e {params.certificate:q} || "
            "dpsweep release --study {params.study:q} > {log:q} 2>&1"

    rule release:
        input:
            [] if CERTIFICATE.exists() else RELEASED,
        log:
            LOGS / "release" / "verify.log",
        params:
            folder=PATHS.release,
        shell:
            "dpsweep verify {params.folder:q} > {log:q} 2>&1 || status=$?; "
            "cat {log:q}; exit ${{status:-0}}"
