"""The section `privacy`: the guarantee."""

from typing import Annotated, Literal

from pydantic import Field

from dpsweep.study.config.section import Section


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
