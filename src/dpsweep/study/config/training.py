"""The sections `privacy`, `training` and `theory`: what holds for all trials."""

from typing import Annotated, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from dpsweep.study.config.section import Engine, PositiveFloat, Section


class Privacy(Section):
    """The guarantee that every private trial of the study is calibrated to."""

    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    step_rounding: Annotated[
        Literal["round", "ceil"],
        Field(
            description="how E epochs become optimizer steps: round is max(1, round(E*N/B)); ceil is "
            "E*ceil(N/B), which can spend many more passes over the data than E"
        ),
    ] = "round"
    check_with_opacus: Annotated[
        bool, Field(description="ask Opacus' accountant too, about every noise multiplier")
    ] = False


class Training(Section):
    """How trials are trained and selected, for all sweeps."""

    selection: Annotated[
        Literal["repeat-best", "exhaustive", "bracket"],
        Field(
            description="repeat-best tunes the learning rate with the first seed and repeats the best "
            "one with the others; exhaustive trains the whole grid with every seed; bracket is "
            "repeat-best that searches the grid for its peak instead of training all of it"
        ),
    ] = "repeat-best"
    select_on: Annotated[
        Literal["test", "holdout"],
        Field(
            description="what learning rate, batch size and clipping bound are chosen by: the test set, as "
            "in the paper, which flatters; or a part of the training set that is held out of training"
        ),
    ] = "test"
    holdout_share: Annotated[
        float,
        Field(
            gt=0,
            lt=1,
            description="share of the training set, for holdout; each example is drawn by itself",
        ),
    ] = 0.1
    engine: Annotated[
        Engine,
        Field(
            description="how per-example gradients are computed: auto takes the fastest one that "
            "knows the network; a method and a sweep may have their own"
        ),
    ] = "auto"
    precision: Annotated[
        Literal["auto", "float32", "bfloat16"],
        Field(
            description="of forward and backward passes; auto is bfloat16 on GPUs that have it, otherwise "
            "float32. Parameters and gradient norms are float32 in any case, a step's sum and its noise "
            "float64"
        ),
    ] = "auto"
    physical_batch: Annotated[
        PositiveInt | Literal["auto"],
        Field(
            description="examples that are on the device at once, halved where memory runs out. auto "
            "begins with a whole batch (256 on a CPU). Changes no result but by rounding"
        ),
    ] = 256
    automatic_clipping_gamma: Annotated[
        PositiveFloat, Field(description="gamma of AUTO-S (Bu et al. 2023)")
    ] = 0.01
    checkpoint_minutes: Annotated[
        PositiveFloat, Field(description="how much work a killed trial may lose")
    ] = 5.0
    threads: Annotated[
        int,
        Field(
            gt=0, le=512, description="CPU threads of one training job (a part of the result's key)"
        ),
    ] = 1
    compile: Annotated[
        bool,
        Field(
            description="let torch compile the training step where the engine can (expanded): minutes "
            "at the start of a cell, faster steps on a GPU"
        ),
    ] = False

    @model_validator(mode="after")
    def _engine_has_precision(self) -> Self:
        if self.precision == "bfloat16" and self.engine == "opacus":
            raise ValueError(
                "precision: found bfloat16 with engine opacus, whose norms would not be float32; "
                "allowed: auto, float32, or another engine"
            )
        return self


class Theory(Section):
    """Batches whose per-example gradients are measured along a trial. Not private."""

    draws: Annotated[
        PositiveInt, Field(le=1000, description="batches that are measured after every epoch")
    ] = 3
    largest_batch: Annotated[
        PositiveInt,
        Field(
            description="examples of a batch, at most; otherwise it is as large as the trial's "
            "expected batch size"
        ),
    ] = 4096
