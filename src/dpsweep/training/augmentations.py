"""Random crops and flips of images, whose gradients are averaged before they are clipped.

An image with its views is one unit of privacy (`dpsweep.gradients.units`), so epsilon stays that of the image
(De et al. 2022, section 3.1). Test images are read as they are stored.
"""

import numpy as np
import torch
from torch import Tensor

from dpsweep.study.methods import Augmentations
from dpsweep.training.randomness import stream_key


class Views:
    """Random views of the rows of a batch.

    >>> views = Views(Augmentations(count=2, crop=1, flip=True), "mine", "views")
    >>> views.draw(step=0, rows=2).tolist()
    [[1, 0, 1], [1, -1, 0], [-1, 1, 1], [0, 1, 1]]

    The views of a step are a function of (stream, step), as its batch is: resuming needs no state.

    Attributes:
        count: of each row.
    """

    def __init__(
        self, augmentations: Augmentations, *stream_parts: str | int, secret: bytes = b""
    ) -> None:
        """Set the stream.

        Args:
            augmentations: of the method.
            stream_parts: the stream's name.
            secret: without one, anyone can draw the same views.
        """
        self.count = augmentations.count
        self._lowest = np.array([-augmentations.crop, -augmentations.crop, 0])
        self._highest = np.array([augmentations.crop, augmentations.crop, int(augmentations.flip)])
        self._key = stream_key(*stream_parts, secret=secret)

    def draw(self, step: int, rows: int) -> Tensor:
        """Draw views of some rows, ``count`` of each one after another.

        Returns:
            Of each view how far down and to the right it begins, and 1 if it is mirrored:
            int64, shape (rows * count, 3).
        """
        generator = np.random.Generator(np.random.Philox(key=self._key, counter=step << 128))
        size = (rows * self.count, 3)
        return torch.from_numpy(
            generator.integers(self._lowest, self._highest, size=size, endpoint=True)
        )


def viewed(images: Tensor, views: Tensor) -> Tensor:
    """Return a view of each image; beyond its edges an image is mirrored.

    >>> image = torch.arange(9, dtype=torch.uint8).view(1, 3, 3, 1)
    >>> viewed(image, torch.tensor([[1, 0, 1]])).view(3, 3).tolist()
    [[5, 4, 3], [8, 7, 6], [5, 4, 3]]

    It is the crop of a padded image (``padding_mode="reflect"`` of torchvision), mirrored, for another place
    in each image at once.

    Args:
        images: shape (B, H, W, C).
        views: as `Views.draw` returns them, on the same device; shifts are less than H and W.
    """
    height, width = images.shape[1:3]
    down, right, mirrored = views.T[:, :, None]
    rows = _reflected(down + torch.arange(height, device=images.device), height)
    columns = torch.arange(width, device=images.device)
    columns = _reflected(right + torch.where(mirrored > 0, columns.flip(0), columns), width)
    image = torch.arange(len(images), device=images.device)
    return images[image[:, None, None], rows[:, :, None], columns[:, None, :]]


def _reflected(places: Tensor, length: int) -> Tensor:
    """Return the places in a line that is mirrored beyond its ends."""
    return (length - 1) - ((length - 1) - places.abs()).abs()
