# `snakemake --profile slurm check_cluster`: what a study needs of a cluster, tried in a minute or two. A job with
# a GPU is sent as training is; it computes, gets the signal that announces a time limit, is requeued, and goes on.
# The other one runs here, as everything does that needs no GPU. Nothing is kept, so that each call tries again.
CHECKS = LOGS / "check"


localrules:
    check_here,
    check_cluster,


rule check_here:
    output:
        temp(CHECKS / "here.txt"),
    log:
        CHECKS / "here.log",
    params:
        study=STUDY_FILE,
    shell:
        "dpsweep check-machine --study {params.study:q} {output:q} > {log:q} 2>&1"


rule check_gpu:
    output:
        temp(CHECKS / "gpu.txt"),
    log:
        CHECKS / "gpu.log",
    threads: STUDY.training.threads
    resources:
        gpu=1,
        mem_mb=lambda wildcards, attempt: attempt * 8_000,
        runtime=15,
    params:
        study=STUDY_FILE,
    shell:
        "dpsweep check-machine --study {params.study:q} {output:q} > {log:q} 2>&1"


rule check_cluster:
    input:
        CHECKS / "here.txt",
        CHECKS / "gpu.txt",
    log:
        CHECKS / "cluster.log",
    shell:
        "tail -n +1 {input:q} > {log:q}; cat {log:q}"
