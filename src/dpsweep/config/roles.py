"""The section `roles`: what stands for what in figures and tables."""

from typing import Annotated

from pydantic import AfterValidator, Field

from dpsweep.config.section import Name, PositiveFloat, Section, strictly_increasing


class DatasetRoles(Section):
    """Names of datasets."""

    main: Name | None = None
    """of most figures"""
    large: Name | None = None
    """many examples of every class"""
    small: Name | None = None
    """few examples of every class"""
    imbalanced: Name | None = None
    """classes of unlike size"""
    scratch: Name | None = None
    """what a network is trained on from scratch"""
    text: Name | None = None
    """texts"""


class BackboneRoles(Section):
    """Names of backbones."""

    weak: Name | None = None
    """of most figures: the weaker one, or the only one"""
    strong: Name | None = None
    """what the weak one is compared with"""
    residual: Name | None = None
    """a convolutional network"""
    scratch: Name | None = None
    """a network without pretraining"""
    text: Name | None = None
    """reads texts"""


class MethodRoles(Section):
    """Names of methods."""

    main: Name | None = None
    """of most figures"""
    lora: Name | None = None
    """low-rank adapters"""
    ranks: list[Name] = []
    """low-rank adapters that differ in their rank"""
    all: Name | None = None
    """every parameter"""
    scratch: Name | None = None
    """every parameter, from random weights"""
    text: Name | None = None
    """for the dataset of texts"""


class Roles(Section):
    """Which datasets, backbones and methods the figures and tables are about.

    A target whose roles are not bound is not drawn; `dpsweep check` says which, and why.
    """

    datasets: DatasetRoles = DatasetRoles()
    backbones: BackboneRoles = BackboneRoles()
    methods: MethodRoles = MethodRoles()
    neighbours: dict[
        Name,
        Annotated[
            list[PositiveFloat],
            Field(min_length=3, max_length=3),
            AfterValidator(strictly_increasing),
        ],
    ] = {}
    """for a method: the small, baseline and large clipping bound that figures contrast; by default
    the bound nearest to 1 and its neighbours on the grid"""

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
