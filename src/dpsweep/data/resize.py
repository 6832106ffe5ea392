"""Resizing of images to the size of a network's input, at preparation or with their batch."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

Interpolation = Literal["bicubic", "bilinear", "nearest"]


class Resize(BaseModel):
    """The resizing of an image of any size to a square, as in Pillow.

    Without ``crop`` the whole image becomes the square. With ``crop`` the shorter side becomes
    ``size / crop`` pixels, and the centre is cut out, as in timm's transform for evaluation.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: PositiveInt
    """Height and width of the network's input, pixels."""
    interpolation: Interpolation
    crop: Annotated[float, Field(gt=0, le=1)] | None = None

    def geometry(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Return height and width after resizing, and top and left of the square in it, in pixels."""
        if self.crop is None:
            return self.size, self.size, 0, 0
        short = int(self.size / self.crop)
        shorter = min(height, width)
        height, width = int(short * height / shorter), int(short * width / shorter)
        top, left = (round((side - self.size) / 2) for side in (height, width))
        return height, width, top, left

    def enlarges(self, height: int, width: int) -> bool:
        """Tell whether neither side is longer than the square's, and at least one is shorter."""
        return max(height, width) <= self.size and min(height, width) < self.size
