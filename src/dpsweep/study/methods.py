"""The section `methods`: which parameters are trained."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from dpsweep.study.section import LONGEST_AXIS, Engine, Section, Title

LARGEST_RANK = 4096  # the number of inputs of the widest layers


class Augmentations(Section):
    """Random views of each training image, whose gradients are averaged before clipping (De et al. 2022)."""

    count: Annotated[PositiveInt, Field(le=LONGEST_AXIS)]
    """how many views of an image a step reads"""
    crop: NonNegativeInt = 0
    """each view is shifted by up to so many pixels of the prepared image in both directions"""
    flip: bool = False
    """whether a view is mirrored, left to right, with probability 1/2"""

    @model_validator(mode="after")
    def _views_differ(self) -> Self:
        if not (self.crop or self.flip):
            raise ValueError(
                "crop: found 0 with flip: false, so that all views are equal; allowed: a larger crop, or "
                "flip: true"
            )
        return self


class MethodSection(Section):
    """Base of all methods."""

    engine: Engine | None = None
    """overrides training.engine"""
    # Excluded if empty: trials of methods without it keep their keys.
    freeze: Annotated[
        list[Annotated[str, Field(min_length=1)]], Field(exclude_if=lambda names: not names)
    ] = []
    """parameters or whole modules that the method would train, but that stay fixed; * is any part
    of a name (network.*.pooler)"""
    augmentations: Annotated[
        Augmentations | None, Field(exclude_if=lambda section: section is None)
    ] = None
    """of the training images, for a method that runs the network"""

    def settings(self) -> dict[str, Any]:
        """Return what determines which parameters train, as JSON: all but the title and the engine."""
        return self.model_dump(mode="json", exclude={"title", "engine"})

    def identity(self) -> dict[str, Any]:
        """Return its part of stored trials' keys."""
        return self.settings()


class Film(MethodSection):
    """Scale and bias of every normalisation layer, and the head (Perez et al. 2018)."""

    title: Title = "FiLM"
    """in figures and tables"""
    kind: Literal["film"]


class HeadOnly(MethodSection):
    """The classification head alone, on cached features if the backbone has the section `features`."""

    title: Title = "Head"
    """in figures and tables"""
    kind: Literal["head"]


class AllParameters(MethodSection):
    """Every parameter of the pretrained network."""

    title: Title = "All parameters"
    """in figures and tables"""
    kind: Literal["all"]


class Scratch(MethodSection):
    """Every parameter, from a random initialisation (the backbone's weights must be random)."""

    title: Title = "From scratch"
    """in figures and tables"""
    kind: Literal["scratch"]


class LoRA(MethodSection):
    """Low-rank adapters through peft (alpha = rank, no dropout), and the head."""

    title: Title = "LoRA"
    """in figures and tables"""
    kind: Literal["lora"]
    rank: Annotated[PositiveInt, Field(le=LARGEST_RANK)]
    """of each adapter"""
    target_modules: Annotated[list[str], Field(min_length=1)]
    """names of linear layers, as in peft"""

    def identity(self) -> dict[str, Any]:
        """Use the former name of the key `target_modules`, so that stored trials stay valid."""
        identity = super().identity()
        return identity | {"targets": identity.pop("target_modules")}


Method = Annotated[
    Film | HeadOnly | AllParameters | Scratch | LoRA,
    Field(discriminator="kind"),
]
