# Inputs of trials: tokenizers, datasets, backbones, features and noise multipliers. They are made again if their
# section of the study or its local files have changed (`settings`).
PREPARED = ["metadata.json", "train_inputs.npy", "train_labels.npy", "test_inputs.npy", "test_labels.npy"]


rule prepare_tokenizer:
    input:
        lambda w: inputs(OUTPUTS.tokenizer(w.backbone)),
    output:
        R / "tokenizers/{backbone}.json",
    log:
        R / "logs/tokenizers/{backbone}.log",
    localrule: True
    params:
        settings=lambda w: fingerprints.tokenizer_fingerprint(STUDY, w.backbone),
    shell:
        "dpsweep prepare-tokenizer {wildcards.backbone} --planned {params.settings} > {log:q} 2>&1"


rule prepare_dataset:
    input:
        lambda w: inputs(OUTPUTS.dataset(w.dataset)),
    output:
        expand(R / "data/{{dataset}}/{file}", file=PREPARED),
    log:
        R / "logs/data/{dataset}.log",
    localrule: True
    params:
        settings=lambda w: fingerprints.source_fingerprint(STUDY.datasets[w.dataset]),
    shell:
        "dpsweep prepare-dataset {wildcards.dataset} --planned {params.settings} > {log:q} 2>&1"


rule prepare_backbone:
    input:
        lambda w: inputs(OUTPUTS.backbone(w.backbone)),
    output:
        R / "backbones/{backbone}/metadata.json",
        R / "backbones/{backbone}/model.safetensors",
    log:
        R / "logs/backbones/{backbone}.log",
    localrule: True
    params:
        settings=lambda w: fingerprints.source_fingerprint(STUDY.backbones[w.backbone]),
    shell:
        "dpsweep prepare-backbone {wildcards.backbone} --planned {params.settings} > {log:q} 2>&1"


# Features for heads, computed on a GPU if there is one.
rule features:
    input:
        lambda w: inputs(OUTPUTS.features(FeatureSource(w.dataset, w.backbone))),
    output:
        expand(R / "features/{{dataset}}/{{backbone}}/{file}", file=PREPARED),
    log:
        R / "logs/features/{dataset}_{backbone}.log",
    threads: STUDY.training.threads
    resources:
        **JOBS.on_gpu("features"),
    params:
        settings=lambda w: fingerprints.section_fingerprint(STUDY.backbones[w.backbone].features),
    shell:
        "dpsweep compute-features {wildcards.dataset} {wildcards.backbone} --planned {params.settings} > {log:q} 2>&1"


# The noise multiplier of one (dataset, epsilon, epochs, batch size); it reads no data.
rule calibrate:
    output:
        R / "noise/{dataset}/eps{epsilon}_epochs{epochs}_B{batch_size}-{settings}.json",
    log:
        R / "logs/noise/{dataset}/eps{epsilon}_epochs{epochs}_B{batch_size}-{settings}.log",
    localrule: True
    shell:
        "dpsweep calibrate {wildcards.dataset} {wildcards.epsilon} {wildcards.epochs} {wildcards.batch_size} "
        "--planned {wildcards.settings} > {log:q} 2>&1"
