# What heads on frozen features read: one job for each (dataset, backbone), on a GPU where there is one.

for source in STUDY.feature_sources():
    features = OUTPUTS.features(source)

    rule:
        name:
            f"features_{'_'.join(source)}"
        input:
            features.inputs,
            again=again(features.name),
        output:
            features.files,
        log:
            LOGS / "features" / f"{'_'.join(source)}.log",
        threads: STUDY.training.threads
        resources:
            **JOBS.features(source),
        params:
            source=" ".join(source),
            study=study_file,
        shell:
            "dpsweep compute-features --study {params.study:q} {params.source} > {log:q} 2>&1"
