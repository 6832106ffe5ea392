# `snakemake --profile slurm check_cluster` tests in a minute or two what a study needs of a cluster: a job computes on
# a GPU, gets the signal before a time limit, is requeued, and continues. Each call tests again, as no output is kept.
rule check_gpu:
    output:
        temp(R / "logs/check/gpu.txt"),
    log:
        R / "logs/check/gpu.log",
    resources:
        gpu=1,
        mem_mb=8_000,
        runtime=15,
    shell:
        "dpsweep check-machine {output:q} > {log:q} 2>&1"


rule check_cluster:
    input:
        R / "logs/check/gpu.txt",
    log:
        R / "logs/check/here.txt",
    localrule: True
    shell:
        "dpsweep check-machine {log:q}; tail -n +1 {log:q} {input:q}"
