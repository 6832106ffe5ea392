# File names contain a hash of their settings (`Study.settings_hash`): other settings are other files.
rule train:
    input:
        lambda w: permitted(w.problem, OUTPUTS.cell_of(w)).inputs,
    output:
        R / "cells/{problem}/{cell}/trials-{settings}.parquet",
        R / "cells/{problem}/{cell}/steps-{settings}.parquet",
    log:
        R / "logs/cells/{problem}/{cell}-{settings}.log",
    threads: JOBS.threads("train")
    resources:
        **JOBS.on_gpu("train"),
    shell:
        "dpsweep train {wildcards.problem} {wildcards.cell} --planned {wildcards.settings} > {log:q} 2>&1"


# Per-example gradient norms of the best batch size, which the job chooses.
rule gradient_norms:
    input:
        lambda w: permitted(w.problem, OUTPUTS.gradient_norms_of(w)).inputs,
    output:
        R / "gradnorms/{problem}/eps{epsilon}_epochs{epochs}_C{clipping_bound}-{settings}.parquet",
    log:
        R / "logs/gradnorms/{problem}/eps{epsilon}_epochs{epochs}_C{clipping_bound}-{settings}.log",
    threads: JOBS.threads("gradient_norms")
    resources:
        **JOBS.on_gpu("gradient_norms"),
    shell:
        "dpsweep gradient-norms {wildcards.problem} {wildcards.epsilon} {wildcards.epochs} "
        "{wildcards.clipping_bound} --planned {wildcards.settings} > {log:q} 2>&1"


# The overlap of per-example gradients in a cell's best trials. Not private: these are raw gradients.
rule theory:
    input:
        lambda w: permitted(w.problem, OUTPUTS.theory_of(w)).inputs,
    output:
        R / "theory/{problem}/{cell}-{settings}.parquet",
    log:
        R / "logs/theory/{problem}/{cell}-{settings}.log",
    threads: JOBS.threads("theory")
    resources:
        **JOBS.on_gpu("theory"),
    shell:
        "dpsweep theory {wildcards.problem} {wildcards.cell} --planned {wildcards.settings} > {log:q} 2>&1"
