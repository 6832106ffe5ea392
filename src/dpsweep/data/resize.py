"""How an image becomes as large as a network's input: at preparation, or with its batch."""

from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

Interpolation = Literal["bicubic", "bilinear", "nearest"]


class Geometry(NamedTuple):
    """An image is resized to a height and width, and a square is cut out of it."""

    height: int
    width: int
    top: int
    left: int


class Resize(BaseModel):
    """From an image of any size to a square, as Pillow does it.

    Without ``crop`` the whole image becomes the square. A share resizes the shorter side to
    ``size / crop`` pixels and keeps the middle, as timm's transform for evaluation does.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: PositiveInt
    """Height and width that the network reads, pixels."""
    interpolation: Interpolation
    crop: Annotated[float, Field(gt=0, le=1)] | None = None

    def geometry(self, height: int, width: int) -> Geometry:
        """Compute the size after resizing an image of this height and width, and where the square lies."""
        if self.crop is None:
            return Geometry(self.size, self.size, 0, 0)
        short = int(self.size / self.crop)
        shorter = min(height, width)
        height, width = int(short * height / shorter), int(short * width / shorter)
        top, left = (round((side - self.size) / 2) for side in (height, width))
        return Geometry(height, width, top, left)

    def enlarges(self, height: int, width: int) -> bool:
        """Whether such an image has fewer pixels than the square, and is no longer in any direction."""
        return max(height, width) <= self.size and min(height, width) < self.size
