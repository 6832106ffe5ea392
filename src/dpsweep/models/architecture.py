"""The description of a backbone's network."""

from typing import Self

from pydantic import BaseModel, ConfigDict

from dpsweep.base.errors import DpsweepError


class BackboneError(DpsweepError):
    """A backbone that cannot be prepared, read or built; the message contains a remedy."""


class Architecture(BaseModel):
    """An empty network: the library that builds it, its name there, and its keyword arguments."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    library: str
    name: str
    arguments: dict[str, bool | int | float | str]

    def with_defaults(self, **defaults: bool | int | float | str) -> Self:
        """Return this architecture with defaults for missing arguments."""
        return self.model_copy(update={"arguments": defaults | self.arguments})
