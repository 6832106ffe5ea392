# A model that may be released: `snakemake release`. It is trained with secret randomness and cannot be
# made again, so where it exists no job makes it, whatever has changed. Nor is it an output: Snakemake
# deletes the outputs of jobs that start or fail. Its job leaves an empty file, the marker, instead.

if STUDY.release is not None:
    CERTIFICATE = R / "release/certificate.json"
    MARKER = R / "logs/release/trained"
    RELEASED = STUDY.sweeps[STUDY.release.sweep].problem.name
    if not CERTIFICATE.exists():
        MARKER.unlink(missing_ok=True)  # of a model that was moved away

    localrules:
        release,

    # `test -e`: the job of a call that was killed may have made the model meanwhile.
    rule train_release:
        input:
            OUTPUTS.trained_on(RELEASED),
        output:
            touch(MARKER),
        log:
            R / "logs/release/train.log",
        threads: STUDY.training.threads
        resources:
            gpu=1,
            mem_mb=JOBS.mem_mb(problem=RELEASED, epochs=max(STUDY.release.epochs)),
            # As long as jobs may be: a limit that only many trials reach would tell how many there were not.
            runtime=30 * 24 * 60,
        params:
            certificate=CERTIFICATE,
        shell:
            "test -e {params.certificate:q} || dpsweep release > {log:q} 2>&1"

    # A section that was edited since does not make another model: the difference is an error.
    # A network file system may show the certificate of another machine late.
    rule release:
        input:
            [] if CERTIFICATE.exists() else MARKER,
        log:
            R / "logs/release/verify.log",
        params:
            certificate=CERTIFICATE,
            folder=CERTIFICATE.parent,
            study=config.get("study", "config.yaml"),
        shell:
            "for second in {{1..60}}; do test -e {params.certificate:q} && break; sleep 1; done; "
            "dpsweep verify {params.folder:q} --study {params.study:q} > {log:q} 2>&1 || status=$?; "
            "cat {log:q}; exit ${{status:-0}}"
