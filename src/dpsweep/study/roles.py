"""The section `roles`: the datasets, backbones and methods that figures and tables refer to by role."""

from typing import Annotated

from pydantic import AfterValidator, Field

from dpsweep.study.section import Name, PositiveFloat, Section, strictly_increasing


class DatasetRoles(Section):
    """Names of datasets."""

    main: Name | None = None
    """of most figures"""
    large: Name | None = None
    """many examples of every class"""
    small: Name | None = None
    """few examples of every class"""
    imbalanced: Name | None = None
    """classes of different sizes"""
    scratch: Name | None = None
    """for training from scratch"""
    text: Name | None = None
    """texts"""


class BackboneRoles(Section):
    """Names of backbones."""

    weak: Name | None = None
    """of most figures: the weaker one, or the only one"""
    strong: Name | None = None
    """compared with the weak one"""
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
    """The datasets, backbones and methods of figures and tables.

    A target is left out if a role that it needs is not bound; `dpsweep check` lists such targets.
    """

    datasets: DatasetRoles = DatasetRoles()
    """datasets of figures and tables, by role"""
    backbones: BackboneRoles = BackboneRoles()
    """backbones, by role"""
    methods: MethodRoles = MethodRoles()
    """methods, by role"""
    neighbours: dict[
        Name,
        Annotated[
            list[PositiveFloat],
            Field(min_length=3, max_length=3),
            AfterValidator(strictly_increasing),
        ],
    ] = {}
    """for a method: the small, baseline and large clipping bound that figures compare; by default the
    bound nearest to 1 and its neighbours on the grid"""

    def bound(self, part: str, name: str) -> list[str] | None:
        """Return the names that a role is bound to.

        Args:
            part: dataset, backbone or method.
            name: of a role, or any other word.

        Returns:
            Names, an empty list if the role is not bound; None if there is no such role.
        """
        section = getattr(self, f"{part}s")
        if name not in type(section).model_fields:
            return None
        found = getattr(section, name)
        return found if isinstance(found, list) else [] if found is None else [found]

    def roles_of(self, part: str) -> list[str]:
        """Return the roles of a part: dataset, backbone or method."""
        return list(type(getattr(self, f"{part}s")).model_fields)
