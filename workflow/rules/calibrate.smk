# The noise multiplier of one (dataset, epsilon, epochs, batch size); no data is read.


rule calibrate:
    output:
        PATHS.noise("{dataset}", "{epsilon}", "{epochs}", "{batch_size}"),
    log:
        LOGS / "noise" / "{dataset}" / "eps{epsilon}_epochs{epochs}_B{batch_size}.log",
    wildcard_constraints:
        dataset="|".join(map(re.escape, STUDY.datasets)),
        epochs=r"\d+",
        batch_size=r"\d+|full",
    group:
        "calibrate"
    resources:
        **JOBS.analysis(minutes=4),
    params:
        delta=STUDY.privacy.delta,
        steps=STUDY.privacy.steps,
        second_opinion=STUDY.privacy.second_opinion,
        train_size=lambda wildcards: STUDY.train_size(wildcards.dataset),
        study=STUDY_FILE,
    shell:
        "dpsweep calibrate --study {params.study:q} {wildcards.dataset} {wildcards.epsilon} "
        "{wildcards.epochs} {wildcards.batch_size} > {log:q} 2>&1"
