"""The section `theory`: which batches the figures of the theory look at."""

from typing import Annotated

from pydantic import Field, PositiveInt

from dpsweep.study.config.section import Section


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
