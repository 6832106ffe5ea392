# What trials read: tokenizers, datasets, backbones, features and noise multipliers. They are made again if their
# section of the study or the local files that it names have changed (`made_for`).
PREPARED = ["metadata.json"] + [
    f"{split}_{what}.npy" for split in ("train", "test") for what in ("inputs", "labels")
]


# Jobs without a GPU run where Snakemake runs: most take a second, and compute nodes often have no network.
localrules:
    prepare_tokenizer,
    prepare_dataset,
    prepare_backbone,
    calibrate,
    check_here,
    check_cluster,


rule prepare_tokenizer:
    output:
        R / "tokenizers/{backbone}.json",
    log:
        R / "logs/tokenizers/{backbone}.log",
    params:
        made_for=lambda w: fingerprints.tokenizer_fingerprint(STUDY, w.backbone),
    shell:
        "dpsweep prepare-tokenizer {wildcards.backbone} > {log:q} 2>&1"


rule prepare_dataset:
    input:
        lambda w: OUTPUTS.dataset(w.dataset).inputs,
    output:
        expand(R / "data/{{dataset}}/{file}", file=PREPARED),
    log:
        R / "logs/data/{dataset}.log",
    params:
        made_for=lambda w: fingerprints.source_fingerprint(STUDY.datasets[w.dataset]),
    shell:
        "dpsweep prepare-dataset {wildcards.dataset} > {log:q} 2>&1"


rule prepare_backbone:
    input:
        lambda w: OUTPUTS.backbone(w.backbone).inputs,
    output:
        R / "backbones/{backbone}/metadata.json",
        R / "backbones/{backbone}/model.safetensors",
    log:
        R / "logs/backbones/{backbone}.log",
    params:
        made_for=lambda w: fingerprints.source_fingerprint(STUDY.backbones[w.backbone]),
    shell:
        "dpsweep prepare-backbone {wildcards.backbone} > {log:q} 2>&1"


# What heads on frozen features read, on a GPU where there is one.
rule features:
    input:
        R / "data/{dataset}/metadata.json",
        R / "backbones/{backbone}/metadata.json",
    output:
        expand(R / "features/{{dataset}}/{{backbone}}/{file}", file=PREPARED),
    log:
        R / "logs/features/{dataset}_{backbone}.log",
    threads: STUDY.training.threads
    resources:
        gpu=1,
        mem_mb=JOBS.mem_mb(),
        runtime=JOBS.runtime("features"),
    params:
        made_for=lambda w: fingerprints.section_fingerprint(STUDY.backbones[w.backbone].features),
    shell:
        "dpsweep compute-features {wildcards.dataset} {wildcards.backbone} > {log:q} 2>&1"


# The noise multiplier of one (dataset, epsilon, epochs, batch size); no data is read.
rule calibrate:
    output:
        R / "noise/{dataset}/eps{epsilon}_epochs{epochs}_B{batch_size}-{made_for}.json",
    log:
        R / "logs/noise/{dataset}/eps{epsilon}_epochs{epochs}_B{batch_size}-{made_for}.log",
    shell:
        "dpsweep calibrate {wildcards.dataset} {wildcards.epsilon} {wildcards.epochs} "
        "{wildcards.batch_size} > {log:q} 2>&1"


# `snakemake --profile slurm check_cluster`: what a study needs of a cluster, tried in a minute or two. A job with
# a GPU is sent as training is; it computes, gets the signal that announces a time limit, is requeued, and goes on.
# The other one runs here, as everything does that needs no GPU. Nothing is kept, so that each call tries again.
rule check_here:
    output:
        temp(R / "logs/check/here.txt"),
    log:
        R / "logs/check/here.log",
    shell:
        "dpsweep check-machine {output:q} > {log:q} 2>&1"


rule check_gpu:
    output:
        temp(R / "logs/check/gpu.txt"),
    log:
        R / "logs/check/gpu.log",
    threads: STUDY.training.threads
    resources:
        gpu=1,
        mem_mb=lambda wildcards, attempt: attempt * 8_000,
        runtime=15,
    shell:
        "dpsweep check-machine {output:q} > {log:q} 2>&1"


rule check_cluster:
    input:
        R / "logs/check/here.txt",
        R / "logs/check/gpu.txt",
    log:
        R / "logs/check/cluster.log",
    shell:
        "tail -n +1 {input:q} > {log:q}; cat {log:q}"
