"""How an image becomes as large as a network's input: at preparation, or with its batch."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

Interpolation = Literal["bicubic", "bilinear", "nearest"]


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

    def geometry(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Compute what an image of this height and width is resized to, and where the square is cut out.

        Returns:
            Height and width after resizing; the top and the left side of the square in it; pixels.
        """
        if self.crop is None:
            return self.size, self.size, 0, 0
        short = int(self.size / self.crop)
        shorter = min(height, width)
        height, width = int(short * height / shorter), int(short * width / shorter)
        top, left = (round((side - self.size) / 2) for side in (height, width))
        return height, width, top, left

    def enlarges(self, height: int, width: int) -> bool:
        """Tell whether an image has fewer pixels than the square, and is no longer in any direction."""
        return max(height, width) <= self.size and min(height, width) < self.size
