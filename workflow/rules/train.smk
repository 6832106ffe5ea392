# Names of files tell the settings that they were made for (`Study.made_for`): other settings are other files.
rule train:
    input:
        lambda w: OUTPUTS.cell_of(w).inputs,
    output:
        R / "cells/{problem}/{cell}/trials-{made_for}.parquet",
        R / "cells/{problem}/{cell}/steps-{made_for}.parquet",
    log:
        R / "logs/cells/{problem}/{cell}-{made_for}.log",
    threads: STUDY.training.threads
    resources:
        **JOBS.on_gpu("train"),
    shell:
        "dpsweep train {wildcards.problem} {wildcards.cell} > {log:q} 2>&1"


# Per-example gradient norms. All batch sizes compete, and the choice is made inside the job.
rule gradient_norms:
    input:
        lambda w: OUTPUTS.gradient_norms_of(w).inputs,
    output:
        R / "gradnorms/{problem}/eps{epsilon}_epochs{epochs}_C{clipping_bound}-{made_for}.parquet",
    log:
        R / "logs/gradnorms/{problem}/eps{epsilon}_epochs{epochs}_C{clipping_bound}-{made_for}.log",
    threads: STUDY.training.threads
    resources:
        **JOBS.on_gpu("gradient_norms"),
    shell:
        "dpsweep gradient-norms {wildcards.problem} {wildcards.epsilon} {wildcards.epochs} "
        "{wildcards.clipping_bound} > {log:q} 2>&1"


# How the per-example gradients of a cell's best trials overlap. Not private: these are raw gradients.
rule theory:
    input:
        lambda w: OUTPUTS.theory_of(w).inputs,
    output:
        R / "theory/{problem}/{cell}-{made_for}.parquet",
    log:
        R / "logs/theory/{problem}/{cell}-{made_for}.log",
    threads: STUDY.training.threads
    resources:
        **JOBS.on_gpu("theory"),
    shell:
        "dpsweep theory {wildcards.problem} {wildcards.cell} > {log:q} 2>&1"
