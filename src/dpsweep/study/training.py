"""The sections `privacy`, `training` and `theory`: settings of all trials."""

from typing import Annotated, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from dpsweep.study.section import Engine, Gpus, PositiveFloat, Section


class Privacy(Section):
    """The guarantee that every private trial of the study is calibrated to."""

    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """of the guarantee; below 1/N"""
    step_rounding: Literal["round", "ceil"] = "round"
    """how E epochs become optimizer steps: round is max(1, round(E*N/B)); ceil is E*ceil(N/B),
    which can be many more passes over the data than E"""
    check_with_opacus: bool = False
    """also check every noise multiplier with Opacus' accountant"""


class Training(Section):
    """How trials are trained and selected, for all sweeps."""

    selection: Literal["repeat-best", "exhaustive", "bracket"] = "repeat-best"
    """repeat-best tunes the learning rate with the first seed and repeats the best one with the
    others; exhaustive trains the whole grid with every seed; bracket is repeat-best that searches
    the grid for its peak instead of training all of it"""
    select_on: Literal["test", "holdout"] = "test"
    """the data that learning rate, batch size and clipping bound are chosen on: the test set, as in
    the paper, which is optimistic; or a part of the training set that is held out of training"""
    holdout_share: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """share of the training set, for holdout; each example is drawn independently"""
    engine: Engine = "auto"
    """how per-example gradients are computed: auto takes the fastest engine that supports the network;
    a method and a sweep may have their own"""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """of forward and backward passes; auto is bfloat16 on GPUs that have it, otherwise float32.
    Parameters and gradient norms are float32 in any case, a step's sum and its noise float64"""
    physical_batch: PositiveInt | Literal["auto"] = 256
    """examples on the device at once, halved if memory runs out. auto begins with a whole batch (256 on
    a CPU). Changes results only by rounding"""
    automatic_clipping_gamma: PositiveFloat = 0.01
    """gamma of AUTO-S (Bu et al. 2023)"""
    checkpoint_minutes: PositiveFloat = 5.0
    """most minutes of work that a killed trial may lose"""
    gpus: Gpus = 1
    """GPUs of each job that trains trials or measures gradient norms: they share every batch of a trial.
    Results are the same up to rounding. It pays for few long trials; many trials are faster one per GPU"""
    threads: Annotated[int, Field(gt=0, le=512)] = 1
    """CPU threads of a training job for each of its GPUs (part of the result's key)"""
    compile: bool = False
    """let torch compile the training step if the engine supports it (expanded): minutes at the start
    of a cell, faster steps on a GPU"""

    @model_validator(mode="after")
    def _engine_has_precision(self) -> Self:
        if self.precision == "bfloat16" and self.engine == "opacus":
            raise ValueError(
                "precision: found bfloat16 with engine opacus, whose norms would not be float32; "
                "allowed: auto, float32, or another engine"
            )
        return self


class Theory(Section):
    """Batches for measuring per-example gradients along a trial. Not private."""

    draws: Annotated[PositiveInt, Field(le=1000)] = 3
    """batches that are measured after every epoch"""
    largest_batch: PositiveInt = 4096
    """most examples of a batch; otherwise a batch has the trial's expected size"""
    seeds: Annotated[PositiveInt, Field(le=1000)] = 1
    """seeds of a cell that are measured, at most as many as it has; all but the first are trained
    again"""
