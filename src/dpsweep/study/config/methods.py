"""The section `methods`: which parameters are trained."""

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from dpsweep.study.config.section import Section


class Film(Section):
    """Scale and bias of every normalisation layer, and the head (Perez et al. 2018)."""

    title: str = "FiLM"
    kind: Literal["film"]


class HeadOnly(Section):
    """The classification head alone."""

    title: str = "Head"
    kind: Literal["head"]


class AllParameters(Section):
    """Every parameter of the pretrained network."""

    title: str = "All parameters"
    kind: Literal["all"]


class Scratch(Section):
    """Every parameter, from a random initialisation (the backbone's weights must be random)."""

    title: str = "From scratch"
    kind: Literal["scratch"]


class LoRA(Section):
    """Low-rank adapters through peft (alpha = rank, no dropout), and the head."""

    title: str = "LoRA"
    kind: Literal["lora"]
    rank: PositiveInt
    targets: Annotated[list[str], Field(min_length=1, description="names of linear layers")]


Method = Annotated[
    Film | HeadOnly | AllParameters | Scratch | LoRA,
    Field(discriminator="kind"),
]
