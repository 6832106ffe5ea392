# What trials read: tokenizers, datasets, backbones, features and noise multipliers.


# Jobs without a GPU run where Snakemake runs: most take a second, and compute nodes often have no network.
localrules:
    prepare_tokenizer,
    prepare_dataset,
    prepare_backbone,
    calibrate,


rule prepare_tokenizer:
    output:
        PATHS.tokenizer("{backbone}"),
    log:
        LOGS / "tokenizers" / "{backbone}.log",
    params:
        study=STUDY_FILE,
    shell:
        "dpsweep prepare-tokenizer --study {params.study:q} {wildcards.backbone} > {log:q} 2>&1"


rule prepare_dataset:
    input:
        lambda wildcards: OUTPUTS.dataset(wildcards.dataset).inputs,
    output:
        prepared_files(PATHS.dataset("{dataset}")),
    log:
        LOGS / "data" / "{dataset}.log",
    params:
        study=STUDY_FILE,
    shell:
        "dpsweep prepare-dataset --study {params.study:q} {wildcards.dataset} > {log:q} 2>&1"


rule prepare_backbone:
    input:
        lambda wildcards: OUTPUTS.backbone(wildcards.backbone).inputs,
    output:
        PATHS.backbone("{backbone}") / "metadata.json",
        PATHS.backbone("{backbone}") / "model.safetensors",
    log:
        LOGS / "backbones" / "{backbone}.log",
    params:
        study=STUDY_FILE,
    shell:
        "dpsweep prepare-backbone --study {params.study:q} {wildcards.backbone} > {log:q} 2>&1"


# What heads on frozen features read: one job for each (dataset, backbone), on a GPU where there is one.
for source in STUDY.feature_sources():
    features = OUTPUTS.features(source)

    rule:
        name:
            f"features_{'_'.join(source)}"
        input:
            features.inputs,
        output:
            features.files,
        log:
            LOGS / "features" / f"{'_'.join(source)}.log",
        threads: STUDY.training.threads
        resources:
            gpu=1,
            mem_mb=JOBS.mem_mb(dataset=source.dataset, backbone=source.backbone),
            runtime=JOBS.runtime(
                "features", dataset=source.dataset, backbone=source.backbone
            ),
        params:
            source=" ".join(source),
            study=STUDY_FILE,
        shell:
            "dpsweep compute-features --study {params.study:q} {params.source} > {log:q} 2>&1"


# The noise multiplier of one (dataset, epsilon, epochs, batch size); no data is read.
noise = "noise/{dataset}/eps{epsilon}_epochs{epochs}_B{batch_size}-{made_for}"


rule calibrate:
    output:
        PATHS.results / f"{noise}.json",
    log:
        LOGS / f"{noise}.log",
    params:
        study=STUDY_FILE,
    shell:
        "dpsweep calibrate --study {params.study:q} {wildcards.dataset} {wildcards.epsilon} "
        "{wildcards.epochs} {wildcards.batch_size} > {log:q} 2>&1"
