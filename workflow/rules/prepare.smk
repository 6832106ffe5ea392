# Tokenizers, datasets and backbones. All run where snakemake runs unless the site says otherwise: compute
# nodes often have no network.

if JOBS.prepare_here:

    localrules:
        prepare_tokenizer,
        prepare_dataset,
        prepare_backbone,


rule prepare_tokenizer:
    input:
        again=again("tokenizers/{backbone}"),
    output:
        PATHS.tokenizer("{backbone}"),
    log:
        LOGS / "tokenizers" / "{backbone}.log",
    wildcard_constraints:
        backbone="|".join(map(re.escape, STUDY.backbones)),
    resources:
        **JOBS.analysis(minutes=60, gigabytes=32),
    params:
        study=study_file,
    shell:
        "dpsweep prepare-tokenizer --study {params.study:q} {wildcards.backbone} > {log:q} 2>&1"


rule prepare_dataset:
    input:
        lambda wildcards: OUTPUTS.dataset(wildcards.dataset).inputs,
        again=again("data/{dataset}"),
    output:
        metadata=PATHS.dataset("{dataset}") / "metadata.json",
        train_inputs=PATHS.dataset("{dataset}") / "train_inputs.npy",
        train_labels=PATHS.dataset("{dataset}") / "train_labels.npy",
        test_inputs=PATHS.dataset("{dataset}") / "test_inputs.npy",
        test_labels=PATHS.dataset("{dataset}") / "test_labels.npy",
    log:
        LOGS / "data" / "{dataset}.log",
    wildcard_constraints:
        dataset="|".join(map(re.escape, STUDY.datasets)),
    resources:
        **JOBS.analysis(minutes=240, gigabytes=32),
    params:
        study=study_file,
    shell:
        "dpsweep prepare-dataset --study {params.study:q} {wildcards.dataset} > {log:q} 2>&1"


rule prepare_backbone:
    input:
        lambda wildcards: OUTPUTS.backbone(wildcards.backbone).inputs,
        again=again("backbones/{backbone}"),
    output:
        metadata=PATHS.backbone("{backbone}") / "metadata.json",
        weights=PATHS.backbone("{backbone}") / "model.safetensors",
    log:
        LOGS / "backbones" / "{backbone}.log",
    wildcard_constraints:
        backbone="|".join(map(re.escape, STUDY.backbones)),
    resources:
        **JOBS.analysis(minutes=240, gigabytes=32),
    params:
        study=study_file,
    shell:
        "dpsweep prepare-backbone --study {params.study:q} {wildcards.backbone} > {log:q} 2>&1"
