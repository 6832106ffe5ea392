# The noise multiplier of one (dataset, epsilon, epochs, batch size); no data is read.


rule calibrate:
    input:
        again=again("noise/{dataset}/eps{epsilon}_epochs{epochs}_B{batch_size}"),
    output:
        PATHS.noise("{dataset}", "{epsilon}", "{epochs}", "{batch_size}"),
    log:
        LOGS / "noise" / "{dataset}" / "eps{epsilon}_epochs{epochs}_B{batch_size}.log",
    wildcard_constraints:
        dataset="|".join(map(re.escape, STUDY.datasets)),
        epochs=r"\d+",
        batch_size=r"\d+|full",
    resources:
        **JOBS.calibration(),
    params:
        study=study_file,
    shell:
        "dpsweep calibrate --study {params.study:q} {wildcards.dataset} {wildcards.epsilon} "
        "{wildcards.epochs} {wildcards.batch_size} > {log:q} 2>&1"
