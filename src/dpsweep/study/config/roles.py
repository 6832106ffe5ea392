"""The section `roles`: what stands for what in figures and tables."""

from typing import Annotated

from pydantic import AfterValidator, Field

from dpsweep.study.config.section import Name, PositiveFloat, Section, strictly_increasing

Bound = Annotated[Name | None, Field(default=None)]


class DatasetRoles(Section):
    """Names of datasets."""

    main: Annotated[Bound, Field(description="of most figures")] = None
    large: Annotated[Bound, Field(description="many examples of every class")] = None
    small: Annotated[Bound, Field(description="few examples of every class")] = None
    imbalanced: Annotated[Bound, Field(description="classes of unlike size")] = None
    scratch: Annotated[Bound, Field(description="what a network is trained on from scratch")] = None
    text: Annotated[Bound, Field(description="texts")] = None


class BackboneRoles(Section):
    """Names of backbones."""

    weak: Annotated[
        Bound, Field(description="of most figures: the weaker one, or the only one")
    ] = None
    strong: Annotated[Bound, Field(description="what the weak one is compared with")] = None
    residual: Annotated[Bound, Field(description="a convolutional network")] = None
    scratch: Annotated[Bound, Field(description="a network without pretraining")] = None
    text: Annotated[Bound, Field(description="reads texts")] = None


class MethodRoles(Section):
    """Names of methods."""

    main: Annotated[Bound, Field(description="of most figures")] = None
    lora: Annotated[Bound, Field(description="low-rank adapters")] = None
    ranks: Annotated[
        list[Name], Field(description="low-rank adapters that differ in their rank")
    ] = []
    all: Annotated[Bound, Field(description="every parameter")] = None
    scratch: Annotated[Bound, Field(description="every parameter, from random weights")] = None
    text: Annotated[Bound, Field(description="for the dataset of texts")] = None


class Roles(Section):
    """Which datasets, backbones and methods the figures and tables are about.

    A target whose roles are not bound is not drawn; `dpsweep check` says which, and why.
    """

    datasets: DatasetRoles = DatasetRoles()
    backbones: BackboneRoles = BackboneRoles()
    methods: MethodRoles = MethodRoles()
    neighbours: Annotated[
        dict[
            Name,
            Annotated[
                list[PositiveFloat],
                Field(min_length=3, max_length=3),
                AfterValidator(strictly_increasing),
            ],
        ],
        Field(
            description="for a method: the small, baseline and large clipping bound that figures "
            "contrast; by default the bound nearest to 1 and its neighbours on the grid"
        ),
    ] = {}
    target_names: Annotated[
        dict[Name, Name],
        Field(description="what stands for a dataset or backbone in the names of targets"),
    ] = {}

    def bound(self, part: str, name: str) -> list[str] | None:
        """Names that a role is bound to.

        Args:
            part: dataset, backbone or method.
            name: perhaps a role.

        Returns:
            Names, none where the role is free; None where there is no such role.
        """
        section = getattr(self, f"{part}s")
        if name not in type(section).model_fields:
            return None
        found = getattr(section, name)
        return found if isinstance(found, list) else [] if found is None else [found]

    def roles_of(self, part: str) -> list[str]:
        """The roles of a part: dataset, backbone or method."""
        return list(type(getattr(self, f"{part}s")).model_fields)
