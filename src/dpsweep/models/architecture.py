"""Describe the network of a backbone without building it."""

from typing import Self

from pydantic import BaseModel, ConfigDict

from dpsweep.base.errors import DpsweepError


class BackboneError(DpsweepError):
    """A backbone that cannot be prepared, read or built; the message says what to do."""


class Architecture(BaseModel):
    """An empty network: who builds it, under which name, with which keyword arguments."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    library: str
    name: str
    arguments: dict[str, bool | int | float | str]

    def with_defaults(self, **defaults: bool | int | float | str) -> Self:
        """Return this architecture with arguments that it has not yet."""
        return self.model_copy(update={"arguments": defaults | self.arguments})
