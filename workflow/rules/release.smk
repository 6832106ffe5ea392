# A model that may be released: `snakemake release`. It is trained with secret randomness and cannot be
# made again, so where it exists no job makes it, whatever has changed. Nor is it an output: Snakemake
# deletes the outputs of jobs that start or fail. Its job leaves an empty file, the marker, instead.

if STUDY.release is not None:
    RELEASE_MINUTES = 30 * 24 * 60
    CERTIFICATE = PATHS.release / "certificate.json"
    TRAINED_MARKER = LOGS / "release" / "trained"
    RELEASED_PROBLEM = STUDY.sweeps[STUDY.release.sweep].problem.name
    if workflow.is_main_process and not CERTIFICATE.exists():
        TRAINED_MARKER.unlink(missing_ok=True)  # of a model that was moved away

    localrules:
        release,

    # `test -e`: the job of a call that was killed may have made the model meanwhile.
    rule train_release:
        input:
            OUTPUTS.trained_on(RELEASED_PROBLEM),
        output:
            touch(TRAINED_MARKER),
        log:
            LOGS / "release" / "train.log",
        threads: STUDY.training.threads
        resources:
            gpu=1,
            mem_mb=JOBS.mem_mb(
                problem=RELEASED_PROBLEM, epochs=max(STUDY.release.epochs)
            ),
            # As long as jobs may be: a limit that only many trials reach would tell how many there were not.
            runtime=RELEASE_MINUTES,
        params:
            certificate=CERTIFICATE,
            study=STUDY_FILE,
        shell:
            "test -e {params.certificate:q} || "
            "dpsweep release --study {params.study:q} > {log:q} 2>&1"

    # A section that was edited since does not make another model: the difference is an error.
    # A network file system may show the certificate of another machine late.
    rule release:
        input:
            [] if CERTIFICATE.exists() else TRAINED_MARKER,
        log:
            LOGS / "release" / "verify.log",
        params:
            certificate=CERTIFICATE,
            folder=PATHS.release,
            study=STUDY_FILE,
        shell:
            "for second in {{1..60}}; do test -e {params.certificate:q} && break; sleep 1; done; "
            "dpsweep verify {params.folder:q} --study {params.study:q} > {log:q} 2>&1 || status=$?; "
            "cat {log:q}; exit ${{status:-0}}"
