"""The section `audit`: a measured lower bound on epsilon."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, PositiveInt, model_validator

from dpsweep.study.cells import Full
from dpsweep.study.clipping import PrivateRule
from dpsweep.study.config.section import Grid, LearningRate, Name, PositiveFloat, Section
from dpsweep.study.config.sweeps import batch_sizes_ascend


class Audit(Section):
    """Canaries in the trainer of a sweep: a measured lower bound on epsilon beside the claimed one."""

    sweep: Annotated[
        Name, Field(description="whose dataset, backbone, method and optimizer are audited")
    ]
    epsilon: Annotated[
        Grid, Field(description="claimed privacy budgets; each is audited at each batch size")
    ]
    epochs: PositiveInt
    batch_size: Annotated[
        list[PositiveInt | Full],
        Field(min_length=1, description="of the training set with its canaries"),
        AfterValidator(batch_sizes_ascend),
    ]
    clipping_bound: PositiveFloat | PrivateRule
    learning_rate: LearningRate
    randomness: Annotated[
        Literal["public", "secret"],
        Field(
            description="of sampling, noise and canaries: public is derived from the setting, as in "
            "sweeps; secret is drawn from the system and never stored, as in a release"
        ),
    ] = "public"
    canaries: Annotated[
        PositiveInt,
        Field(description="examples with a known gradient; at most one a trainable parameter"),
    ] = 1000
    guesses: Annotated[
        PositiveInt,
        Field(description="even: half of them 'included', half 'excluded'; choose before looking"),
    ] = 200

    @model_validator(mode="after")
    def _guesses_are_about_canaries(self) -> Self:
        if self.guesses % 2 or self.guesses > self.canaries:
            raise ValueError(
                f"guesses: found {self.guesses}; allowed: an even number up to the canaries, which "
                f"are {self.canaries}"
            )
        return self
